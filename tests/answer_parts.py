"""The parts of one answer with everything that an answer may have, for the tests of those who build objects of them."""

from collections.abc import Sequence

from genai_server.answer_parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart, WholeAnswer

PARTS: list[Part] = [
    Reasoning("so"),
    Reasoning(" be it"),
    Content("Hel"),
    Content("lo"),
    ToolCallStart(0, "call_1", "add"),
    ToolCallArguments(0, '{"a": '),
    ToolCallArguments(0, "1}"),
    ToolCallStart(1, "call_2", "sub"),
    ToolCallArguments(1, "{}"),
]


def whole(parts: Sequence[Part]) -> WholeAnswer:
    """The parts as one answer."""
    answer = WholeAnswer()
    for part in parts:
        answer.add(part)
    return answer
