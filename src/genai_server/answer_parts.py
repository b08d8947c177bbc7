"""The parts of an answer, which each API writes in its own form."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from pydantic_core import from_json


class Content(Struct, frozen=True):
    """More of the answer's own text."""

    text: str


class Reasoning(Struct, frozen=True):
    """More of what the model wrote before its answer."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A tool call begins."""

    # Position among the answer's calls, from 0.
    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of a call's arguments."""

    # As in ToolCallStart.
    index: int
    # All fragments of a call together are one JSON object.
    fragment: str


@dataclass(frozen=True)
class ToolCallCut:
    """What looked like a call turned out not to be one: it continued as other text, or the answer ended within it."""

    # As in ToolCallStart.
    index: int
    # What the model wrote of it, markers included.
    text: str


Part = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallCut


# Without gc: an answer may have a million of them, and a full collection stopped the process for 0.9 s.
class ScoredToken(Struct, frozen=True, gc=False):
    """A token's bytes with its log probability."""

    # The token's bytes.
    data: bytes
    # None for the first token of a prompt.
    logprob: float | None
    # The most likely tokens at its position, in descending order.
    top: tuple["ScoredToken", ...] = ()
    # Characters of text before the token.
    offset: int = 0

    @property
    def text(self) -> str:
        """The bytes as text; incomplete characters become U+FFFD."""
        return self.data.decode(errors="replace")


@dataclass
class WholeToolCall:
    """A tool call with all its arguments."""

    id: str
    name: str
    # The text of a JSON object.
    arguments: str = ""

    @property
    def given(self) -> dict[str, Any]:
        """The arguments as an object. A call that was cut off has only the complete ones."""
        try:
            found = from_json(self.arguments, allow_inf_nan=False, allow_partial=True)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass
class WholeAnswer:
    """All parts of one answer, put together."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[WholeToolCall] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Add one more part."""
        match part:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case ToolCallStart(_, id, name):
                self.tool_calls.append(WholeToolCall(id, name))
            case ToolCallArguments(_, fragment):
                self.tool_calls[-1].arguments += fragment
            case ToolCallCut(_, text):
                self.tool_calls.pop()
                self.content += text
