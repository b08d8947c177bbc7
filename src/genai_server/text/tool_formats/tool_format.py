"""The interface of the formats in which models write tool calls (`ToolFormat`), and what the formats share.

A format reads calls from an answer and emits them to `Calls`, returns the rules of grammars for calls, and writes calls
into prompts. `Tool` is a function that the model may call, and `Call` a call.
"""

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
    """A function of a request that the model may call.

    `parameters` is the JSON schema of its arguments; None for no arguments. `is_promised` says that the arguments must
    match the entire schema, as with OpenAI's `strict`; otherwise, what cannot be enforced may be left out.
    """

    name: str
    # The JSON schema of its arguments; None for no arguments.
    parameters: Mapping[str, Any] | None = None
    # Whether arguments must match the entire schema.
    is_promised: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema that the model's arguments must match; it always describes an object.

        Unless `parameters` says otherwise, only the listed properties are allowed, because most functions refuse other
        properties and models invent some.
        """
        schema = {**(self.parameters if self.parameters is not None else {"properties": {}}), "type": "object"}
        if lists_its_properties(schema) and not _PROPERTY_KEYWORDS & schema.keys():
            schema["additionalProperties"] = False
        return schema


@dataclass(frozen=True)
class Call:
    """A tool call that the model made earlier in the conversation: the function's name, and its arguments by name."""

    name: str
    arguments: Mapping[str, Any]


def lists_its_properties(schema: Mapping[str, Any]) -> bool:
    """Whether the schema of an object lists its properties, including all required ones."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return all(isinstance(key, str) and key in properties for key in required)


def can_be_split(schema: Mapping[str, Any]) -> bool:
    """Whether a schema can be split into one schema for each property of its objects, with shared definitions
    (`$defs`).

    Formats that write arguments one by one need this.
    """
    return (
        schema.keys() <= _SPLITTABLE
        and lists_its_properties(schema)
        and all(isinstance(value, dict) for value in schema["properties"].values())
        and not _REFERENCE_ELSEWHERE.search(to_text(schema))
    )


class ToolFormat(ABC):
    """Base class of the tool call formats. A format says how the models of one family write tool calls.

    It reads calls from answers, writes calls into prompts, and returns the rules of grammars for calls. `name` is its
    name in settings, `opening` the marker that begins calls anywhere in an answer (None if calls are recognized without
    one), and `result_role` the role of a call's result in prompts.
    """

    # The format's name in settings.
    name: str
    # The marker that begins calls anywhere in an answer; None if calls are recognized without a marker.
    opening: str | None
    # The role of a call's result in prompts, for chat templates without tool calls that accept any role.
    result_role: str = "tool"

    @property
    @abstractmethod
    def shown_tokens(self) -> tuple[str, ...]:
        """The texts of the special tokens that the decoder must keep in the answer's text, because `read_calls` needs
        them.
        """

    @property
    def beginnings(self) -> str:
        """The characters with which a tool call may begin, as one string. Other text need not be examined."""
        return (self.opening or "")[:1]

    @abstractmethod
    def read_calls(self, text: Lookahead, calls: "Calls", *, new_line: bool) -> Reader[bool]:
        """Read one or several tool calls at the current position of `text`, and emit them to `calls`.

        `new_line` says whether the position is at the beginning of a line or directly after other calls. Result of this
        generator, which yields while it needs more text: False if the text is not a call, or turns out not to be one;
        the text after `calls.emitted_to` is then not a call.
        """

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        """Return rules of a grammar in llguidance's dialect of Lark, whose first rule `calls` matches tool calls.

        These are one call or, if `parallel`, one or more calls of the given tools. The rules are those of `lark_calls`
        and `lark_called` together. `opaque_tokens` maps the texts of special tokens, which no literal matches, to token
        ids. Raises InvalidField for parameters of a tool that cannot be enforced.
        """
        calls = self.lark_calls(parallel=parallel, opaque_tokens=opaque_tokens)
        return f"{calls}\n{self.lark_called(tools, opaque_tokens)}"

    @abstractmethod
    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        """Return Lark rules whose first rule `calls` matches one call or, if `parallel`, one or more calls.

        For each call, they use the rule `called` of `lark_called`. If the format has an `opening`, calls begin with the
        rule `opening`, which the caller must add. `suffix` is appended to all names of these rules except `called`.
        `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids.
        """

    @abstractmethod
    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        """Return Lark rules whose first rule `called` matches the name and the arguments of one call to one of `tools`.

        `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids. Raises InvalidField
        for parameters of a tool that cannot be enforced.
        """

    def lark_beginning(self, names: Sequence[str], *, before: str = ANYTHING) -> str:
        """Return a regular expression (Rust) for text up to and including what `read_calls` takes for the beginning of
        a call.

        Grammars use it for free text, which must not match. The match ends no later than the first lexeme of the rule
        `calls`. Otherwise free text could continue past the end of this lexeme, and llguidance, which takes the longest
        lexeme, would not recognize the call. `names` are the names of the functions. `before` is the expression for
        text before a marker, in formats with a marker.
        """
        return f"{before}{re.escape(self.opening or '')}"

    @abstractmethod
    def write_calls(self, calls: Sequence[Call]) -> str:
        """Return the text of these calls as the model would write it, for prompts. `read_calls` can read this text."""

    def new_id(self) -> str:
        """Return a new id for a tool call, in a form that the model's chat template accepts."""
        return random_id()


class Calls:
    """Receives the tool calls of one answer from a format's reader and emits them as parts of the answer, with `emit`.

    A call is emitted from the opening brace of its arguments on or, with `only_complete`, when the call is complete.
    Before that, the text may still turn out to be something else. The answer's parser creates it. `parameters` maps the
    names of the functions to the JSON schemas of their arguments, and `new_id` returns an id for a call. The attribute
    `emitted_to` is the position in the text before which everything has been emitted, and `is_open` says that a call
    has been started and neither completed nor abandoned.
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
        """Start a call to the function `name`.

        `id` is the id that the model wrote. The call gets it unless another call already has it; without it, the call
        gets a new id.
        """
        self._name, self._id, self._held = name, id, ""
        self.is_open, self._is_emitted = True, False

    def arguments(self, fragment: str, read_to: int) -> None:
        """Add a fragment of JSON to the arguments of the open call. The fragment ends at the text position `read_to`.

        The fragments must not include the closing brace of all arguments.
        """
        self._held += fragment
        if self._held and not self._only_complete:
            self._release(read_to)

    def end(self, read_to: int) -> None:
        """Complete the open call, whose text ends at position `read_to`. The closing brace of the arguments is added
        here.
        """
        self._held += "}"
        self._release(read_to)
        self._end(is_complete=True)

    def abandon(self) -> bool:
        """Give up the open call, which will not be completed. Returns whether a part of it has been emitted.

        If so, its end is emitted, and the call is marked as incomplete.
        """
        if self._is_emitted:
            self._end(is_complete=False)
        self.is_open = False
        return self._is_emitted

    def _release(self, read_to: int) -> None:
        """Emit the open call's arguments that are held back, and before the first of them the beginning of the call.

        All text before position `read_to` then counts as emitted.
        """
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
    """Return a value as JSON on one line, with the separators ", " and ": ", which the server's grammars require."""
    return json.dumps(value, ensure_ascii=False)


def read_list(text: Lookahead, calls: Calls, read_call: Callable[[Lookahead, Calls], Reader[bool]]) -> Reader[bool]:
    """Read at least one call in brackets, separated by commas. `read_call` is a reader that reads one call and emits it
    to `calls`.

    Result of this generator, which yields while it needs more text: whether the text was such a list.
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
    """Consume whitespace and the closing marker of calls. If the marker is missing, nothing is consumed: some models
    omit it.

    This generator yields whenever it needs more text.
    """
    start = text.at
    yield from text.skip_space()
    if not (yield from text.take_last(marker)):
        text.at = start


def random_id(prefix: str = "call_", length: int = 24) -> str:
    """Return a new random id for a tool call: the prefix, and `length` random letters and digits."""
    return prefix + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
