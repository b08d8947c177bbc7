"""Calls in the format of each model family, as clients of three APIs see them; scripts write the answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from genai_server.text.answers.dialect import TOOL_FORMATS
from tests.apis.tool_answers import ANSWERS, CALLS, functions
from tests.running_server import RunningServer


@pytest.fixture(params=sorted(ANSWERS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(form: str, server_of: Callable[[str], RunningServer]) -> RunningServer:
    return server_of(form)


def _chat(form: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": function} for function in functions(form)]
    return {"messages": [{"role": "user", "content": _said(form)}], "tools": tools}


def _response(form: str) -> dict[str, Any]:
    tools = [{"type": "function", **function, "strict": False} for function in functions(form)]
    return {"model": "demo", "input": _said(form), "tools": tools}


def _events(server: RunningServer, path: str, sent: dict[str, Any]) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json={**sent, "stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _said(form: str) -> str:
    return f"say {ANSWERS[form]}"


def test_chat_completions_have_reasoning_text_and_calls(server: RunningServer, form: str) -> None:
    sent = _chat(form)
    choice = server.client.post("/v1/chat/completions", json=sent).json()["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"].strip()) == ("I look.", "Hm.")
    called = [call["function"] for call in message["tool_calls"]]
    assert [(one["name"], json.loads(one["arguments"])) for one in called] == CALLS
    if form == "kimi":
        assert [call["id"] for call in message["tool_calls"]] == ["functions.get_weather:0", "functions.now:1"]

    content, arguments = "", {0: "", 1: ""}
    for event in _events(server, "/v1/chat/completions", sent):
        delta = event["choices"][0]["delta"]
        content += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            arguments[call["index"]] += call["function"].get("arguments") or ""
    assert content == "I look."
    assert [json.loads(text) for text in arguments.values()] == [given for _, given in CALLS]


def test_responses_have_items_for_them(server: RunningServer, form: str) -> None:
    sent = _response(form)
    output = server.client.post("/v1/responses", json=sent).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [(item["name"], json.loads(item["arguments"])) for item in output[2:]] == CALLS
    done = [event["item"] for event in _events(server, "/v1/responses", sent) if event["type"].endswith("item.done")]
    assert [(item["name"], json.loads(item["arguments"])) for item in done if "arguments" in item] == CALLS


def test_messages_have_blocks_for_them(server: RunningServer, form: str) -> None:
    tools = [
        {"name": function["name"], "description": form, "input_schema": function["parameters"]}
        for function in functions(form)
    ]
    sent = {"model": "demo", "max_tokens": 2000, "messages": [{"role": "user", "content": _said(form)}]}
    message = server.client.post("/v1/messages", json={**sent, "tools": tools}).json()
    assert message["stop_reason"] == "tool_use"
    assert [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"] == CALLS
    pieces = [
        event["delta"]["partial_json"]
        for event in _events(server, "/v1/messages", {**sent, "tools": tools})
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta"
    ]
    assert json.loads("".join(pieces).partition("}")[0] + "}") == CALLS[0][1]


def test_cut_call_is_not_presented_as_complete(server: RunningServer, form: str) -> None:
    most = len(ANSWERS[form].replace("⏎", "\n").partition("slo")[0].encode())
    sent = {**_chat(form), "max_tokens": most}
    choice = server.client.post("/v1/chat/completions", json=sent).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    for call in choice["message"].get("tool_calls") or ():
        with pytest.raises(ValueError, match="line 1"):
            json.loads(call["function"]["arguments"])
    sent = {**_response(form), "max_output_tokens": most}
    response = server.client.post("/v1/responses", json=sent).json()
    assert response["status"] == "incomplete"
    assert [item["status"] for item in response["output"] if item["type"] == "function_call"] in ([], ["incomplete"])


def test_answer_without_tools_has_only_reasoning_parsed(server: RunningServer, form: str) -> None:
    sent = {"messages": [{"role": "user", "content": _said(form)}]}
    message = server.client.post("/v1/chat/completions", json=sent).json()["choices"][0]["message"]
    assert message["reasoning_content"].strip() == "Hm."
    assert "get_weather" in message["content"]
    assert not message.get("tool_calls")


def test_every_format_is_tried() -> None:
    assert set(ANSWERS) == TOOL_FORMATS.keys()
