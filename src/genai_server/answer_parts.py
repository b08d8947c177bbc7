"""What an answer is made of, for whoever tells it in the form of one API or another."""

from dataclasses import dataclass, field


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


@dataclass(frozen=True)
class ScoredToken:
    """A token's bytes, with its log probability and the likeliest tokens at its place, likeliest first.

    `logprob` is None for the first token of a prompt, which nothing came before. `offset` counts the characters of text
    before the token.
    """

    data: bytes
    logprob: float | None
    top: list["ScoredToken"] = field(default_factory=list)
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
