"""The parts of a model's answer (content, reasoning, tool calls), which each API converts to its own format."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from pydantic_core import from_json


class Content(Struct, frozen=True):
    """A piece of the text that answers the user."""

    text: str


class Reasoning(Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """The beginning of a tool call.

    Its arguments follow, then a ToolCallEnd; parts of other kinds come only after that.
    """

    # Position among the answer's calls, from 0.
    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """A fragment of the arguments of the tool call that was started last."""

    # As in ToolCallStart.
    index: int
    # All fragments of a complete call together are one JSON object. Those of another call are its beginning: at least
    # the opening brace, and never the closing one.
    fragment: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The end of a tool call, and whether the call is complete. Only a complete call may be executed."""

    # As in ToolCallStart.
    index: int
    # Whether the model completed the call. Otherwise the answer ended within it, or it continued as other text.
    is_complete: bool


@dataclass(frozen=True)
class ToolResult:
    """The output of a tool that the server has run. It comes after the ends of all calls of the same round."""

    # As in ToolCallStart.
    index: int
    text: str
    # Whether `text` is an error: of the tool, or the reason why it could not be run.
    is_error: bool


Part = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd | ToolResult


# Without gc: an answer may have a million of them, and a full collection stopped the process for 0.9 s.
class ScoredToken(Struct, frozen=True, gc=False):
    """A token, given as bytes, with its log probability."""

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
        """The token's bytes as text; incomplete characters become U+FFFD."""
        return self.data.decode(errors="replace")


@dataclass
class WholeToolCall:
    """A tool call, assembled from its parts."""

    id: str
    name: str
    # The text of a JSON object, or the beginning of one if the call is not complete.
    arguments: str = ""
    # As in ToolCallEnd.
    is_complete: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """The arguments as an object. Of a call that is not complete, only those arguments that are complete."""
        try:
            value = from_json(self.arguments, allow_inf_nan=False, allow_partial=True)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass
class WholeText:
    """The text of consecutive parts of an answer of the same kind, which is content or reasoning."""

    is_reasoning: bool
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class WholeToolResult:
    """The output of a tool call that the server has run."""

    call: WholeToolCall
    text: str
    is_error: bool


@dataclass
class WholeAnswer:
    """A whole answer, assembled from its parts in the order in which the model wrote them."""

    blocks: list[WholeText | WholeToolCall | WholeToolResult] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)

    @property
    def content(self) -> str:
        """All content, without the reasoning and tool calls between."""
        return self._text(is_reasoning=False)

    @property
    def reasoning(self) -> str:
        """All reasoning, without the content and tool calls between."""
        return self._text(is_reasoning=True)

    @property
    def tool_calls(self) -> list[WholeToolCall]:
        return [block for block in self.blocks if isinstance(block, WholeToolCall)]

    @property
    def tool_results(self) -> list[WholeToolResult]:
        return [block for block in self.blocks if isinstance(block, WholeToolResult)]

    def add(self, part: Part) -> None:
        """Append the next part."""
        last = self.blocks[-1] if self.blocks else None
        match part:
            case Content(text) | Reasoning(text):
                is_reasoning = isinstance(part, Reasoning)
                if not isinstance(last, WholeText) or last.is_reasoning != is_reasoning:
                    last = WholeText(is_reasoning)
                    self.blocks.append(last)
                last.pieces.append(text)
            case ToolCallStart(_, id, name):
                self.blocks.append(WholeToolCall(id, name))
            case ToolCallArguments(_, fragment):
                assert isinstance(last, WholeToolCall)
                last.arguments += fragment
            case ToolCallEnd(_, is_complete):
                assert isinstance(last, WholeToolCall)
                last.is_complete = is_complete
            case ToolResult(index, text, is_error):
                self.blocks.append(WholeToolResult(self.tool_calls[index], text, is_error))

    def _text(self, *, is_reasoning: bool) -> str:
        texts = (block for block in self.blocks if isinstance(block, WholeText))
        return "".join(block.text for block in texts if block.is_reasoning == is_reasoning)
