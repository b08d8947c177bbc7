"""An answer with all the parts that an answer can have, for tests of the modules that build response objects."""

from collections.abc import Sequence

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    WholeAnswer,
)

PARTS: list[Part] = [
    Reasoning("so"),
    Reasoning(" be it"),
    Content("Hel"),
    Content("lo"),
    ToolCallStart(0, "call_1", "add"),
    ToolCallArguments(0, '{"a": '),
    ToolCallArguments(0, "1}"),
    ToolCallEnd(0, is_complete=True),
    ToolCallStart(1, "call_2", "sub"),
    ToolCallArguments(1, "{}"),
    ToolCallEnd(1, is_complete=True),
]


def whole(parts: Sequence[Part]) -> WholeAnswer:
    """The parts as one complete answer."""
    answer = WholeAnswer()
    for part in parts:
        answer.add(part)
    return answer
