"""Calls in the format of each model family, as clients of three APIs see them; scripts write the answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from genai_server.cli.serve import loaders
from genai_server.text.answers.dialect import TOOL_FORMATS, read_dialect
from genai_server.text.codec import TextCodec, load_text_codec
from genai_server.text.prompts.chat_template import SCRIPTED_TEMPLATE
from tests.running_server import RunningServer
from tests.server_here import run_here

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
CALLS = [("get_weather", {"city": "Oslo", "days": 3}), ("now", {})]
THOUGHT = "<think>⏎Hm.⏎</think>⏎⏎"
# Reasoning, a text and both calls.
ANSWERS = {
    "qwen3_coder": (
        f"{THOUGHT}I look.⏎⏎<tool_call>⏎<function=get_weather>⏎<parameter=city>⏎Oslo⏎</parameter>⏎<parameter=days>⏎3⏎"
        "</parameter>⏎</function>⏎</tool_call>⏎<tool_call>⏎<function=now>⏎</function>⏎</tool_call>"
    ),
    "glm": (
        f"{THOUGHT}I look.⏎<tool_call>get_weather⏎<arg_key>city</arg_key>⏎<arg_value>Oslo</arg_value>⏎"
        "<arg_key>days</arg_key>⏎<arg_value>3</arg_value>⏎</tool_call>⏎<tool_call>now⏎</tool_call>"
    ),
    "minimax": (
        f'{THOUGHT}I look.⏎<minimax:tool_call>⏎<invoke name="get_weather">⏎<parameter name="city">Oslo</parameter>⏎'
        '<parameter name="days">3</parameter>⏎</invoke>⏎<invoke name="now">⏎</invoke>⏎</minimax:tool_call>'
    ),
    "deepseek_v3": (
        f"{THOUGHT}I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather⏎```json⏎"
        '{"city": "Oslo", "days": 3}⏎```<｜tool▁call▁end｜>⏎<｜tool▁call▁begin｜>function<｜tool▁sep｜>now⏎```json⏎'
        "{}⏎```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        f"{THOUGHT}I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Oslo", "days": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>"
    ),
    "kimi": (
        f"{THOUGHT}I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Oslo", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "granite": (
        f'{THOUGHT}I look.<|tool_call|>[{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": 3}}}}, '
        '{"name": "now", "arguments": {}}]'
    ),
    "lfm2": (f'{THOUGHT}I look.<|tool_call_start|>[get_weather(city="Oslo", days=3), now()]<|tool_call_end|>'),
    "olmo3": f'{THOUGHT}I look.⏎<function_calls>get_weather(city="Oslo", days=3)⏎now()</function_calls>',
    "nemotron": (
        f'{THOUGHT}I look.⏎<TOOLCALL>[{{"name": "get_weather", "arguments": {{"city": "Oslo", "days": 3}}}}, '
        '{"name": "now", "arguments": {}}]</TOOLCALL>'
    ),
    "harmony": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Oslo", "days": 3}<|call|><|start|>assistant<|channel|>commentary to=functions.now '
        "<|constrain|>json<|message|>{}<|call|>"
    ),
}


@pytest.fixture(scope="module")
def codecs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, list[TextCodec]]]:
    """A server and the text codec of its model."""
    loaded: list[TextCodec] = []

    def load(*arguments: Any, **fields: Any) -> TextCodec:
        loaded.append(load_text_codec(*arguments, **fields))
        return loaded[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaders, "load_text_codec", load)
        with run_here(tmp_path_factory.mktemp("formats"), "--device", "scripted") as server:
            yield server, loaded


@pytest.fixture(params=sorted(ANSWERS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(form: str, codecs: tuple[RunningServer, list[TextCodec]]) -> RunningServer:
    """The server as configured by GENAI_TOOL_PARSER; one start serves all formats."""
    server, (codec,) = codecs
    codec.dialect = read_dialect(SCRIPTED_TEMPLATE, form)
    return server


def _tools(form: str) -> list[dict[str, Any]]:
    """The functions, with a different description per format, because output specs of equal functions are cached."""
    return [
        {"name": "get_weather", "description": form, "parameters": PARAMETERS},
        {"name": "now", "description": form, "parameters": {"type": "object", "properties": {}}},
    ]


def _chat(form: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": function} for function in _tools(form)]
    return {"messages": [{"role": "user", "content": _said(form)}], "tools": tools}


def _response(form: str) -> dict[str, Any]:
    tools = [{"type": "function", **function, "strict": False} for function in _tools(form)]
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
        for function in _tools(form)
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


def test_every_newer_format_is_tried() -> None:
    assert set(ANSWERS) == TOOL_FORMATS.keys() - {"hermes", "llama3_json", "mistral", "phi4mini", "pythonic"}
