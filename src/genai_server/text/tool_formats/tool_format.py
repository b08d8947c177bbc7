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
from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, to_text

# With these a schema says more about its properties than "properties" does.
_ABOUT_PROPERTIES = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
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
        """The schema to which a model is held: an object and, unless `parameters` says otherwise, no more than its
        properties, because most functions refuse others and models invent them.
        """
        schema = {**(self.parameters if self.parameters is not None else {"properties": {}}), "type": "object"}
        if lists_its_properties(schema) and not _ABOUT_PROPERTIES & schema.keys():
            schema["additionalProperties"] = False
        return schema


@dataclass(frozen=True)
class Call:
    """A call made by the model."""

    name: str
    arguments: Mapping[str, Any]


def lists_its_properties(schema: Mapping[str, Any]) -> bool:
    """Whether a schema names the properties of its objects, among them all that are required."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return all(isinstance(key, str) and key in properties for key in required)


def can_be_split(schema: Mapping[str, Any]) -> bool:
    """Whether the schema of an object can be split into one for each property, with the same `$defs`."""
    return (
        schema.keys() <= _SPLITTABLE
        and lists_its_properties(schema)
        and all(isinstance(value, dict) for value in schema["properties"].values())
        and not _REFERENCE_ELSEWHERE.search(to_text(schema))
    )


class ToolFormat(ABC):
    """The tool call format of a model family."""

    # The format's name in settings.
    name: str
    # The marker that begins calls anywhere in an answer; None if calls are recognized without a marker.
    opening: str | None
    # The role of a call's result in prompts, for chat templates without tool calls that accept any role.
    result_role: str = "tool"

    @property
    @abstractmethod
    def shown_tokens(self) -> tuple[str, ...]:
        """Special tokens that the decoder must show."""

    @property
    def beginnings(self) -> str:
        """The characters with which calls may begin."""
        return (self.opening or "")[:1]

    @abstractmethod
    def read_calls(self, text: Lookahead, calls: "Calls", *, new_line: bool) -> Reader[bool]:
        """Read one or several calls at `text.at` and emit them to `calls`.

        `new_line` says whether a line begins here, or other calls come before. Returns False where the text is not, or
        no longer, one of calls; the text after `calls.emitted_to` is then something else.
        """

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        """Rules of llguidance's Lark with `calls` on top, which `lark_calls` and `lark_called` describe."""
        calls = self.lark_calls(parallel=parallel, opaque_tokens=opaque_tokens)
        return f"{calls}\n{self.lark_called(tools, opaque_tokens)}"

    @abstractmethod
    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        """Rules with `calls` on top: one call or, if `parallel`, one or more, made of the rule `called`.

        They begin with the rule `opening`, which is left to the caller, where there is an `opening`. All these rules
        but `called` have the suffix. For `opaque_tokens` see text/grammars/grammar.py.
        """

    @abstractmethod
    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        """Rules with `called` on top: the name and arguments of one call."""

    def lark_beginning(self, names: Sequence[str], *, before: str = ANYTHING) -> str:
        """An expression of Rust's regex for text up to and with what `read_calls` takes for a call's beginning.

        It ends no later than the first lexeme of `calls`, which is lost if other text continues past its end. `before`
        is the text before a marker, in formats that have one.
        """
        return f"{before}{re.escape(self.opening or '')}"

    @abstractmethod
    def write_calls(self, calls: Sequence[Call]) -> str:
        """The text of these calls, as read by `read_calls`."""

    def new_id(self) -> str:
        """An id for a call that the model's chat template accepts."""
        return random_id()


class Calls:
    """The calls of one answer: reads become parts here, and how much of the text has been emitted is known.

    A call is emitted from the opening brace of its arguments on. With `only_complete`, it is emitted when it is
    complete. Before that, its text may still become something else.
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
        """A call begins. `id` is the one that the model wrote, which the call gets unless another call has it."""
        self._name, self._id, self._held = name, id, ""
        self.is_open, self._is_emitted = True, False

    def arguments(self, fragment: str, read_to: int) -> None:
        """More of the open call's arguments, without the closing brace of the whole. They end at `read_to`."""
        self._held += fragment
        if self._held and not self._only_complete:
            self._release(read_to)

    def end(self, read_to: int) -> None:
        """The open call is complete; this adds the closing brace to its arguments. Its text ends at `read_to`."""
        self._held += "}"
        self._release(read_to)
        self._end(is_complete=True)

    def abandon(self) -> bool:
        """The open call is not completed. Returns whether some of it has been emitted."""
        if self._is_emitted:
            self._end(is_complete=False)
        self.is_open = False
        return self._is_emitted

    def _release(self, read_to: int) -> None:
        """Emit what is held of the open call, of which all text before `read_to` has then been emitted."""
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
    """JSON on one line, in the format of grammars."""
    return json.dumps(value, ensure_ascii=False)


def read_list(text: Lookahead, calls: Calls, read_call: Callable[[Lookahead, Calls], Reader[bool]]) -> Reader[bool]:
    """Read at least one call in brackets, with commas between; returns like `ToolFormat.read_calls`."""
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
    """Read the closing marker of calls, which models sometimes omit, and the whitespace before it."""
    place = text.at
    yield from text.skip_space()
    if not (yield from text.take_last(marker)):
        text.at = place


def random_id(prefix: str = "call_", length: int = 24) -> str:
    """A new id: the prefix and this number of random letters and digits."""
    return prefix + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
