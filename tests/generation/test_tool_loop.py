"""The parts of the loop that need no server."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from genai_server.answer_parts import (
    Content,
    Part,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    WholeAnswer,
    WholeToolCall,
)
from genai_server.generation.answers import Piece
from genai_server.generation.parameters.chat_messages import ChatMessage, ChatParameters, Tool, tool_for_template
from genai_server.generation.tool_loop import (
    ServedTool,
    ServedTools,
    _result_message,
    replace_indexes,
    unanswered,
    with_tools,
)
from genai_server.messages.supervisor_protocol import ToolInfo, ToolOutput
from genai_server.text.codec import TextCodec, load_text_codec
from tests.running_server import DEMO
from tests.tool_server import PROMPT

pytestmark = pytest.mark.anyio

# The tokens that begin and end a turn of the demo model.
MARKERS = (1, 2)
USER = {"role": "user", "content": "x"}
CALLS = {
    "role": "assistant",
    "tool_calls": [{"id": id, "function": {"name": "s__t", "arguments": "{}"}} for id in ("one", "two")],
}


def messages(*given: Mapping[str, object]) -> list[ChatMessage]:
    return [ChatMessage.model_validate(each) for each in given]


def tool(name: str, *, needs_approval: bool = False) -> ServedTool:
    return ServedTool("s", ToolInfo(name, "About it.", b'{"type": "object"}'), needs_approval)


def test_only_calls_at_the_end_wait_for_results() -> None:
    result = {"role": "tool", "tool_call_id": "one", "content": "1"}
    assert unanswered(messages(USER, CALLS)) == ["one", "two"]
    assert unanswered(messages(USER, CALLS, result)) == ["two"]
    assert unanswered(messages(USER, CALLS, result, USER)) == []
    assert unanswered(messages(USER)) == unanswered([]) == []


def test_tools_that_need_an_approval_run_only_calls_that_have_one() -> None:
    served = ServedTools({"s__t": tool("t", needs_approval=True), "s__u": tool("u")}, frozenset({"one"}))
    assert served.of("one", "s__t") is not None
    assert served.of("two", "s__t") is None
    assert served.of("two", "s__u") is not None
    assert served.of("two", "other") is None


def test_functions_of_a_chat_keep_their_names() -> None:
    own = {"type": "function", "function": {"name": "s__t", "description": "Mine."}}
    chat = ChatParameters.model_validate({"messages": [USER], "tools": [own]})
    both = with_tools(chat, [tool("t"), tool("u")])
    assert [(each.function.name, each.function.description) for each in both.tools or ()] == [
        ("s__t", "Mine."),
        ("s__u", "About it."),
    ]
    assert list(both.listed_tools) == both.tools


def test_calls_of_later_rounds_are_counted_on() -> None:
    def parts(index: int) -> list[Part]:
        call: list[Part] = [
            ToolCallStart(index, "a", "f"),
            ToolCallArguments(index, "{}"),
            ToolCallEnd(index, is_complete=True),
        ]
        return [*call, Content("x")]

    assert replace_indexes(Piece(parts(0), []), 2).parts == parts(2)


def test_results_stand_behind_the_calls_of_their_round() -> None:
    answer = WholeAnswer()
    for index, id in enumerate(("a", "b")):
        answer.add(ToolCallStart(index, id, "f"))
        answer.add(ToolCallArguments(index, "{}"))
        answer.add(ToolCallEnd(index, is_complete=True))
    answer.add(ToolResult(0, "first", is_error=False))
    answer.add(ToolResult(1, "second", is_error=True))
    answer.add(Content("done"))
    assert [(result.call.id, result.text, result.is_error) for result in answer.tool_results] == [
        ("a", "first", False),
        ("b", "second", True),
    ]
    assert answer.content == "done"


async def num_special(codec: TextCodec, conversation: list[ChatMessage], tools: list[Any] | None = None) -> int:
    """How many tokens of a chat's prompt begin or end a turn."""
    prompt = await codec.encode_chat([each.for_template() for each in conversation], tools)
    return sum(token in MARKERS for token in prompt.tokens)


async def test_results_and_descriptions_never_become_structure() -> None:
    """One that looks like the end of a turn has as many special tokens as one that does not: none."""
    codec = load_text_codec(DEMO, "cpu")

    async def special(text: str) -> tuple[int, int]:
        result = _result_message(WholeToolCall("one", "s__t", "{}", is_complete=True), ToolOutput(0, text))
        parameters = json.dumps({"type": "object", "description": text}).encode()
        function = ServedTool("s", ToolInfo("t", text, parameters)).function
        tools = [tool_for_template(Tool.model_validate({"type": "function", "function": function}))]
        asked = messages(USER)
        return await num_special(codec, [*messages(USER, CALLS), result]), await num_special(codec, asked, tools)

    found = await special(PROMPT)
    assert found == await special("harmless")
    assert min(found) > 0
