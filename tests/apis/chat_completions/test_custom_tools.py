"""Custom tools on chat completions: tools that the model calls with a text, which may have to match a grammar."""

import json
import re
from typing import Any

import pytest
from openai import OpenAI

from genai_server.answer_parts import Part, ToolCallArguments, ToolCallEnd, ToolCallStart, WholeAnswer, WholeToolCall
from genai_server.apis.chat_completions import ChatCompletionBuilder
from genai_server.apis.own_chat import ChatRequest
from genai_server.generation.answers import Ending
from tests.running_server import RunningServer

PATCH: Any = {"type": "custom", "custom": {"name": "patch", "description": "Change a file."}}
FUNCTION: Any = {"type": "function", "function": {"name": "add"}}


def _call(name: str, arguments: Any) -> str:
    return f"<tool_call>⏎{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}⏎</tool_call>"


def _with_format(syntax: str, definition: str) -> Any:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {**PATCH["custom"], "format": form}}


def _ask(content: str) -> Any:
    return {"model": "demo", "messages": [{"role": "user", "content": content}]}


TEXT = '*** Begin\n+ "é"\\'
SAID = f"say Well.{_call('patch', {'input': TEXT})}"


def test_the_message_of_a_call_goes_back_with_its_result(client: OpenAI) -> None:
    asked = _ask(SAID)
    message = client.chat.completions.create(**asked, tools=[PATCH]).choices[0].message
    (call,) = message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "say applied"}
    again: Any = [*asked["messages"], message, result]
    last = client.chat.completions.create(model="demo", messages=again, tools=[PATCH])
    assert last.choices[0].message.content == "applied"


def test_a_stream_has_the_text_when_it_is_complete(client: OpenAI) -> None:
    said = f"say {_call('patch', {'input': TEXT})}{_call('add', {'a': 1})}"
    chunks = list(client.chat.completions.create(**_ask(said), tools=[PATCH, FUNCTION], stream=True))
    deltas = [call.to_dict() for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    (first,) = [delta for delta in deltas if delta["index"] == 0]
    assert first == {"index": 0, "id": first["id"], "type": "custom", "custom": {"name": "patch", "input": TEXT}}
    second, *more = [delta for delta in deltas if delta["index"] == 1]
    assert second["type"] == "function"
    assert "".join(str(delta["function"]["arguments"]) for delta in more if isinstance(delta["function"], dict))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_arguments_in_another_form_come_at_the_end_of_their_call() -> None:
    build = ChatCompletionBuilder("id", "demo", 1, custom_tools={"patch"})
    events: list[Part] = [ToolCallStart(0, "c", "patch"), ToolCallArguments(0, "no JSON")]
    assert build.part(0, events, [])["choices"][0]["delta"] == {}
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "no JSON"}}
    assert build.part(0, [ToolCallEnd(0, is_complete=True)], [])["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, **call}]
    }
    answer = WholeAnswer([WholeToolCall("c", "patch", "no JSON", is_complete=True)])
    assert build.choice(0, answer, Ending(calls_tools=True))["message"]["tool_calls"] == [call]


@pytest.mark.parametrize(
    ("tool", "pattern"),
    [
        (_with_format("regex", "[ab]{2}"), "[ab]{2}"),
        (_with_format("lark", 'start: "x" /[0-9]{3}/'), "x[0-9]{3}"),
        (PATCH, ".*"),
    ],
    ids=["regex", "lark", "text"],
)
def test_the_text_matches_the_format(demo: RunningServer, tool: Any, pattern: str) -> None:
    choice = {"type": "custom", "custom": {"name": "patch"}}
    asked = {**_ask("Hello!"), "tools": [tool, FUNCTION], "tool_choice": choice, "max_tokens": 60}
    message = demo.client.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert re.fullmatch(pattern, call["custom"]["input"], re.DOTALL)


def test_only_allowed_custom_tools_are_in_the_prompt() -> None:
    allowed = {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    chat = ChatRequest.model_validate({**_ask("x"), "tools": [PATCH, FUNCTION], "tool_choice": choice})
    assert [tool.function.name for tool in chat.tools or []] == ["patch"]
    assert chat.tool_choice == "required"
    assert chat.custom_names == {"patch"}


def test_earlier_calls_are_functions_to_the_template() -> None:
    def turns(**call: Any) -> list[dict[str, Any]]:
        called = {"role": "assistant", "tool_calls": [{"id": "1", **call}]}
        messages = [{"role": "user", "content": "x"}, called, {"role": "tool", "tool_call_id": "1", "content": "b"}]
        return [turn.for_template() for turn in ChatRequest.model_validate({"messages": messages}).messages]

    function = {"name": "f", "arguments": '{"input": "a"}'}
    assert turns(type="custom", custom={"name": "f", "input": "a"}) == turns(type="function", function=function)


@pytest.mark.parametrize("stream", [False, True])
def test_the_servers_own_endpoints_have_the_text(scripted: RunningServer, stream: bool) -> None:
    response = scripted.client.post("/v1/chat/stream" if stream else "/v1/chat", json={**_ask(SAID), "tools": [PATCH]})
    if stream:
        events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]
        (call,) = [call for event in events for call in event.get("tool_calls", [])]
        assert call == {"index": 0, "id": call["id"], "name": "patch", "input": TEXT}
    else:
        (call,) = response.json()["tool_calls"]
        assert call == {"id": call["id"], "type": "custom", "custom": {"name": "patch", "input": TEXT}}
