"""The interface of tool call formats, and what the formats share."""

import json
import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genai_server.answer_parts import Part, ToolCallArguments, ToolCallCut, ToolCallStart
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

    @abstractmethod
    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        """Rules of llguidance's Lark with `calls` on top: one call or, if `parallel`, one or more.

        They begin with the rule `opening`, which is left to the caller, where there is an `opening`. For
        `opaque_tokens` see text/grammars/grammar.py.
        """

    def lark_beginning(self, names: Sequence[str]) -> str:
        """An expression of Rust's regex for text up to and with what `read_calls` takes for a call's beginning.

        It ends no later than the first lexeme of `calls`, which is lost if other text continues past its end.
        """
        return f"{ANYTHING}{re.escape(self.opening or '')}"

    @abstractmethod
    def write_calls(self, calls: Sequence[Call]) -> str:
        """The text of these calls, as read by `read_calls`."""

    def new_id(self) -> str:
        """An id for a call that the model's chat template accepts."""
        return random_id()


class Calls:
    """The calls of one answer: their names, and how much of the text has been emitted."""

    def __init__(
        self,
        parameters: Mapping[str, Mapping[str, Any] | None],
        new_id: Callable[[], str],
        emit: Callable[[Part], None],
    ) -> None:
        # JSON schemas of the functions' arguments, keyed by name; None for no arguments.
        self.parameters = parameters
        # The names of the functions.
        self.names: Collection[str] = parameters.keys()
        # The text before this position has been emitted.
        self.emitted_to = 0
        # Whether a call is open.
        self.open = False
        # The position where the last call began.
        self.began = 0
        self._new_id = new_id
        self._emit = emit
        self._index = -1
        self._ids: set[str] = set()

    def start(self, name: str, emitted_to: int, *, id: str | None = None) -> None:
        """A call begins, with the id that the model wrote, if it is not another's. The text before `emitted_to` is
        emitted.
        """
        self._index += 1
        if id is None or id in self._ids:
            id = self._new_id()
        self._ids.add(id)
        self.began = self.emitted_to
        self.open, self.emitted_to = True, emitted_to
        self._emit(ToolCallStart(self._index, id, name))

    def arguments(self, fragment: str, emitted_to: int) -> None:
        """Emit more of the open call's arguments. Sets `emitted_to`."""
        self.emitted_to = emitted_to
        if fragment:
            self._emit(ToolCallArguments(self._index, fragment))

    def cut(self, text: str) -> None:
        """Emit that the open call is invalid or truncated; `text` is its text so far."""
        self.open = False
        self._emit(ToolCallCut(self._index, text))

    def end(self, emitted_to: int) -> None:
        """End the open call. Sets `emitted_to`."""
        self.open, self.emitted_to = False, emitted_to


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
