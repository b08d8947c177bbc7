"""The interface of tool call formats, and what the formats share."""

import json
import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genai_server.answer_parts import Part, ToolCallArguments, ToolCallEnd, ToolCallStart
from genai_server.text.answers.parsing import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, to_text

# With these a schema says more about its properties than "properties" does.
_PROPERTY_KEYWORDS = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
# A schema of these only can be split into one for each property.
_SPLITTABLE = {"type", "properties", "required", "additionalProperties", "$defs", "title", "description", "$schema"}
_REFERENCE_ELSEWHERE = re.compile(r'"\$ref": "(?!#/\$defs/)')

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    # The JSON schema of its arguments; None for no arguments.
    parameters: Mapping[str, Any] | None = None
    # Whether arguments must match the entire schema.
    is_promised: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The schema that the model's arguments must match: always an object.

        Unless `parameters` says otherwise, only the listed properties are allowed, because most functions refuse other
        properties and models invent some.
        """
        schema = {**(self.parameters if self.parameters is not None else {"properties": {}}), "type": "object"}
        if lists_its_properties(schema) and not _PROPERTY_KEYWORDS & schema.keys():
            schema["additionalProperties"] = False
        return schema


@dataclass(frozen=True)
class Call:
    """A tool call that the model has made."""

    name: str
    arguments: Mapping[str, Any]


def lists_its_properties(schema: Mapping[str, Any]) -> bool:
    """Whether a schema lists the properties of its objects, including all required ones."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return all(isinstance(key, str) and key in properties for key in required)


def can_be_split(schema: Mapping[str, Any]) -> bool:
    """Whether the schema of an object can be split into one schema for each property, with shared `$defs`."""
    return (
        schema.keys() <= _SPLITTABLE
        and lists_its_properties(schema)
        and all(isinstance(value, dict) for value in schema["properties"].values())
        and not _REFERENCE_ELSEWHERE.search(to_text(schema))
    )


class ToolFormat(ABC):
    """Base class of the tool call formats: how the models of one family write tool calls."""

    # The format's name in settings.
    name: str
    # The marker that begins calls anywhere in an answer; None if calls are recognized without a marker.
    opening: str | None
    # The role of a call's result in prompts, for chat templates without tool calls that accept any role.
    result_role: str = "tool"

    @property
    @abstractmethod
    def shown_tokens(self) -> tuple[str, ...]:
        """The special tokens that the decoder must convert to text, because `read_calls` needs them."""

    @property
    def beginnings(self) -> str:
        """The characters with which a tool call may begin."""
        return (self.opening or "")[:1]

    @abstractmethod
    def read_calls(self, text: Lookahead, calls: "Calls", *, new_line: bool) -> Reader[bool]:
        """Read one or several calls at `text.at` and emit them to `calls`.

        `new_line` says whether the position is at the beginning of a line or directly after other calls. Returns False
        if the text is not a call, or turns out not to be one; the text after `calls.emitted_to` is then something else.
        """

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        """Return llguidance Lark rules that start with `calls`: one call or, if `parallel`, one or more calls of the
        given tools.

        The rules are those of `lark_calls` and `lark_called`.
        """
        calls = self.lark_calls(parallel=parallel, opaque_tokens=opaque_tokens)
        return f"{calls}\n{self.lark_called(tools, opaque_tokens)}"

    @abstractmethod
    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        """Return Lark rules that start with `calls`, which matches the rule `called` once or, if `parallel`, one or
        more times.

        If the format has an `opening`, the rules begin with the rule `opening`, which the caller must add. All names of
        these rules except `called` end with `suffix`. `opaque_tokens` maps the texts of tokens that literals never
        match to ids.
        """

    @abstractmethod
    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        """Return Lark rules that start with `called`: the name and the arguments of one call to one of `tools`.
        `opaque_tokens` maps the texts of tokens that literals never match to ids.
        """

    def lark_beginning(self, names: Sequence[str], *, before: str = ANYTHING) -> str:
        """Return a regular expression (Rust) for text up to and including what `read_calls` takes for the beginning of
        a call.

        The match ends no later than the first lexeme of the rule `calls`. Otherwise free text, which must not match,
        could continue past the end of this lexeme, and llguidance, which takes the longest lexeme, would not recognize
        the call. `names` are the names of the functions. `before` is the expression for text before a marker, in
        formats with a marker.
        """
        return f"{before}{re.escape(self.opening or '')}"

    @abstractmethod
    def write_calls(self, calls: Sequence[Call]) -> str:
        """Return the text of these calls as the model would write it, so that `read_calls` can read it."""

    def new_id(self) -> str:
        """Return a new id for a call, in a form that the model's chat template accepts."""
        return random_id()


class Calls:
    """Emits the tool calls of one answer as parts, and records up to which position the text has been emitted.

    A call is emitted from the opening brace of its arguments on or, with `only_complete`, when the call is complete.
    Before that, the text may still turn out to be something else.
    """

    def __init__(
        self,
        parameters: Mapping[str, Mapping[str, Any] | None],
        new_id: Callable[[], str],
        emit: Callable[[Part], None],
        *,
        only_complete: bool = False,
    ) -> None:
        # JSON schemas of the functions' arguments, keyed by name; None for no arguments.
        self.parameters = parameters
        # The names of the functions.
        self.names: Collection[str] = parameters.keys()
        # The text before this position has been emitted.
        self.emitted_to = 0
        # Whether the last call has been started, and neither completed nor abandoned.
        self.is_open = False
        self._only_complete = only_complete
        self._new_id = new_id
        self._emit = emit
        self._index = -1
        self._ids: set[str] = set()
        # The open call: its name, the id that the model wrote, whether it has been emitted, and the arguments that have
        # not been.
        self._name = ""
        self._id: str | None = None
        self._is_emitted = False
        self._held = ""

    def start(self, name: str, *, id: str | None = None) -> None:
        """Start a call. `id` is the id that the model wrote; the call gets it unless another call already has it."""
        self._name, self._id, self._held = name, id, ""
        self.is_open, self._is_emitted = True, False

    def arguments(self, fragment: str, read_to: int) -> None:
        """Add a fragment of the open call's arguments, which ends at text position `read_to`.

        The fragments must not include the closing brace of all arguments.
        """
        self._held += fragment
        if self._held and not self._only_complete:
            self._release(read_to)

    def end(self, read_to: int) -> None:
        """Complete the open call, whose text ends at position `read_to`. Adds the closing brace of the arguments."""
        self._held += "}"
        self._release(read_to)
        self._end(is_complete=True)

    def abandon(self) -> bool:
        """Give up the open call, which will not be completed. Returns whether a part of it has been emitted."""
        if self._is_emitted:
            self._end(is_complete=False)
        self.is_open = False
        return self._is_emitted

    def _release(self, read_to: int) -> None:
        """Emit the held arguments of the open call. All text before position `read_to` has then been emitted."""
        if not self._is_emitted:
            self._is_emitted = True
            self._index += 1
            id = self._new_id() if self._id is None or self._id in self._ids else self._id
            self._ids.add(id)
            self._emit(ToolCallStart(self._index, id, self._name))
        self._emit(ToolCallArguments(self._index, self._held))
        self._held, self.emitted_to = "", read_to

    def _end(self, *, is_complete: bool) -> None:
        self.is_open = False
        self._emit(ToolCallEnd(self._index, is_complete))


def write_json(value: Any) -> str:
    """Return a value as JSON on one line, with the separators that grammars require."""
    return json.dumps(value, ensure_ascii=False)


def read_list(text: Lookahead, calls: Calls, read_call: Callable[[Lookahead, Calls], Reader[bool]]) -> Reader[bool]:
    """Read at least one call in brackets, separated by commas. `read_call` reads and emits one call.

    Returns whether the text was such a list.
    """
    if not (yield from text.take("[")):
        return False
    while (yield from read_call(text, calls)):
        yield from text.skip_space()
        if (yield from text.take("]")):
            return True
        if not (yield from text.take(",")):
            return False
    return False


def read_closing(text: Lookahead, marker: str) -> Reader[None]:
    """Consume whitespace and the closing marker of calls, if the marker is present. Models sometimes omit it."""
    start = text.at
    yield from text.skip_space()
    if not (yield from text.take_last(marker)):
        text.at = start


def random_id(prefix: str = "call_", length: int = 24) -> str:
    """Return a new id: the prefix and `length` random letters and digits."""
    return prefix + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
