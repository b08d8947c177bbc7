"""What an answer is made of, for whoever tells it in the form of one API or another."""

from dataclasses import dataclass, field

from msgspec import Struct


@dataclass(frozen=True)
class Content:
    """More of the answer's own text."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins: the `index`-th of the answer, counted from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of a call's arguments, which together are one JSON object."""

    index: int
    fragment: str


Part = Content | Reasoning | ToolCallStart | ToolCallArguments


# Out of the collector's sight: an answer may have a million of them, and looking at each stopped the process for 0.9 s.
class ScoredToken(Struct, frozen=True, gc=False):
    """A token's bytes with its log probability."""

    data: bytes
    # None for the first token of a prompt, which nothing came before.
    logprob: float | None
    # The likeliest tokens at its place, likeliest first.
    top: tuple["ScoredToken", ...] = ()
    # Characters of text before the token.
    offset: int = 0

    @property
    def text(self) -> str:
        """The bytes as text, as far as they are."""
        return self.data.decode(errors="replace")


@dataclass
class WholeToolCall:
    """A call with all its arguments, the text of a JSON object."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class WholeAnswer:
    """All parts of one answer, put together."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[WholeToolCall] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Take one more part."""
        match part:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case ToolCallStart(_, id, name):
                self.tool_calls.append(WholeToolCall(id, name))
            case ToolCallArguments(index, fragment):
                self.tool_calls[index].arguments += fragment
