"""The parts into which an answer is divided while it is generated, and which each API converts to its own format:
`Content`, `Reasoning`, tool calls (`ToolCallStart`, `ToolCallArguments`, `ToolCallEnd`) and `ToolResult`. `WholeAnswer`
assembles the parts of a whole answer, and a `ScoredToken` is a token with its log probability.
"""

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from pydantic_core import from_json


class Content(Struct, frozen=True):
    """A part of an answer: a piece of the text that is meant for the user."""

    text: str


class Reasoning(Struct, frozen=True):
    """A part of an answer: a piece of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A part of an answer: the beginning of a tool call, with the call's id and the tool's name.

    The call's arguments follow, then a ToolCallEnd; parts of other kinds come only after that.
    """

    # Position among the answer's calls, from 0.
    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """A part of an answer: a fragment of the JSON arguments of the tool call that was started last."""

    # As in ToolCallStart.
    index: int
    # All fragments of a complete call together are one JSON object. Those of another call are its beginning: at least
    # the opening brace, and never the closing one.
    fragment: str


@dataclass(frozen=True)
class ToolCallEnd:
    """A part of an answer: the end of a tool call, and whether the call is complete. Only a complete call may be
    executed.
    """

    # As in ToolCallStart.
    index: int
    # Whether the model completed the call. Otherwise the answer ended within it, or it continued as other text.
    is_complete: bool


@dataclass(frozen=True)
class ToolResult:
    """A part of an answer: the output of a tool that the server itself has run. It comes after the ends of all tool
    calls that the model made together with this one.
    """

    # As in ToolCallStart.
    index: int
    text: str
    # Whether `text` is an error: of the tool, or the reason why it could not be run.
    is_error: bool


Part = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd | ToolResult


# Without gc: an answer may have a million of them, and a full collection stopped the process for 0.9 s.
class ScoredToken(Struct, frozen=True, gc=False):
    """A token of an answer or a prompt, given as bytes, with its natural log probability, the most likely tokens at its
    position, and its place in the text.
    """

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
    """A tool call with all of its arguments, assembled by WholeAnswer from the parts of the answer."""

    id: str
    name: str
    # The text of a JSON object, or the beginning of one if the call is not complete.
    arguments: str = ""
    # As in ToolCallEnd.
    is_complete: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """The arguments as an object. If the call is not complete, the object has only those arguments that are
        complete; it is empty if the arguments are no JSON object.
        """
        try:
            value = from_json(self.arguments, allow_inf_nan=False, allow_partial=True)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass
class WholeText:
    """A text of an answer, content or reasoning, assembled by WholeAnswer from consecutive parts of this kind."""

    is_reasoning: bool
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class WholeToolResult:
    """The output of a tool call that the server has run, together with the call."""

    call: WholeToolCall
    text: str
    is_error: bool


@dataclass
class WholeAnswer:
    """A whole answer, assembled from its parts: texts, tool calls and tool results, in the order in which they were
    written. Whoever reads an answer to its end calls `add` for each part.
    """

    blocks: list[WholeText | WholeToolCall | WholeToolResult] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)

    @property
    def content(self) -> str:
        """The text for the user: all content, joined, without the reasoning and tool calls between."""
        return self._text(is_reasoning=False)

    @property
    def reasoning(self) -> str:
        """All reasoning, joined, without the content and tool calls between."""
        return self._text(is_reasoning=True)

    @property
    def tool_calls(self) -> list[WholeToolCall]:
        return [block for block in self.blocks if isinstance(block, WholeToolCall)]

    @property
    def tool_results(self) -> list[WholeToolResult]:
        return [block for block in self.blocks if isinstance(block, WholeToolResult)]

    def add(self, part: Part) -> None:
        """Append the next part of the answer: to the last block if the part continues it, otherwise as a new block."""
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
