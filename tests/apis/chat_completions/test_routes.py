"""OpenAI's endpoints, through OpenAI's client where possible."""

import json
import re
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.running_server import RunningServer, body, wait_until


def test_a_completion_has_openais_form(client: OpenAI) -> None:
    completion = _chat(client, "say hi")
    (choice,) = completion.choices
    assert (completion.object, choice.message.role) == ("chat.completion", "assistant")
    assert (choice.message.content, choice.finish_reason) == ("hi", "stop")
    assert completion.usage.completion_tokens == 2
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 2


@pytest.mark.parametrize(("path", "prefix"), [("/v1/chat/completions", "chatcmpl-"), ("/v1/completions", "cmpl-")])
def test_id_names_the_request_and_the_fingerprint_the_model(scripted: RunningServer, path: str, prefix: str) -> None:
    fields: Any = {"prompt": "say x\n\x04"} if path == "/v1/completions" else body("say x")
    response = scripted.client.post(path, json=fields)
    assert response.json()["id"] == prefix + response.headers["x-request-id"].removeprefix("req-")
    named = [scripted.client.post(path, json=fields, headers={"x-request-id": "mine.1"}).json() for _ in range(2)]
    assert all(re.fullmatch(f"{prefix}[0-9a-f]{{24}}", answer["id"]) for answer in named)
    assert named[0]["id"] != named[1]["id"]
    streamed = scripted.client.post(path, json={**fields, "stream": True, "stream_options": {"include_usage": True}})
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    first, *others = [answer["system_fingerprint"] for answer in (response.json(), *named, *chunks)]
    assert re.fullmatch("fp_[0-9a-f]{12}", first)
    assert others == [first] * (2 + len(chunks))
    assert len(chunks) > 1


def test_stream_error_raises_an_exception_in_openais_client(client: OpenAI) -> None:
    with pytest.raises(openai.APIError, match="scripted failure"):
        list(_chat(client, "fail at 1; say hello", stream=True))


TOOLS: Any = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now"}},
]


# constraints on answers


def _asked(content: str) -> Any:
    return {"model": "demo", "messages": [{"role": "user", "content": content}]}


def _chat(client: OpenAI, content: str, **fields: Any) -> Any:
    return client.chat.completions.create(**_asked(content), **fields)


def _events(server: RunningServer, content: str, **fields: Any) -> list[Any]:
    with server.stream(content, path="/v1/chat/completions", stream=True, **fields) as events:
        return [json.loads(event) for event in events if event != "[DONE]"]


@pytest.mark.parametrize(("stop", "shown"), [("4", "1, 2, 3, "), (["9", ", 5"], "1, 2, 3, 4")])
def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(
    client: OpenAI, scripted: RunningServer, stop: str | list[str], shown: str
) -> None:
    (whole,) = _chat(client, "count 6", stop=stop).choices
    assert (whole.message.content, whole.finish_reason) == (shown, "stop")
    chunks = [event["choices"][0] for event in _events(scripted, "count 6", stop=stop)]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == shown
    assert chunks[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_stop_string_is_shown_on_request(scripted: RunningServer, path: str) -> None:
    asked = body("count 9") if "chat" in path else {"prompt": "count 9\n\x04", "max_tokens": 90}
    asked |= {"stop": ["5", "7"], "include_stop_str_in_output": True}
    choice = scripted.client.post(path, json=asked).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == "1, 2, 3, 4, 5"


def test_stopped_answer_frees_its_slot_and_counts_its_tokens(client: OpenAI, scripted: RunningServer) -> None:
    usage = _chat(client, "delay 0.01; count 1000", stop="5", max_tokens=1900).usage
    assert len("1, 2, 3, 4, 5") <= usage.completion_tokens < 1900
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(scripted: RunningServer, stream: bool) -> None:
    for path, fields in (
        ("/v1/chat/completions", body("say hello")),
        ("/v1/completions", {"prompt": "say hello\n\x04"}),
    ):
        asked = {**fields, "stop_token_ids": [ord("z"), ord("l")], "ignore_eos": True, "stream": stream}
        text = scripted.client.post(path, json=asked).text
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")] or [text]
        choices = [json.loads(line)["choices"][0] for line in lines]
        parts = [choice.get("message") or choice.get("delta") or {"content": choice.get("text")} for choice in choices]
        assert "".join(part.get("content") or "" for part in parts) == "he"
        assert choices[-1]["finish_reason"] == "stop"


def test_n_is_the_number_of_answers(client: OpenAI) -> None:
    whole = _chat(client, "say hello", n=3)
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [(i, "hello") for i in range(3)]
    assert whole.usage.completion_tokens == 3 * 5
    texts, ends = ["", "", ""], set()
    for choice in (chunk.choices[0] for chunk in _chat(client, "say hello", n=3, stream=True)):
        texts[choice.index] += choice.delta.content or ""
        ends |= {choice.index} if choice.finish_reason else set()
    assert (texts, ends) == (["hello"] * 3, {0, 1, 2})


ADD = '<tool_call> {"name": "add", "arguments": {"a": 1}} </tool_call>'
NOW = '<tool_call> {"name": "now", "arguments": {}} </tool_call>'


def test_tool_calls_are_streamed_in_fragments(client: OpenAI) -> None:
    with client.chat.completions.stream(**_asked(f"say {ADD} {NOW}"), tools=TOOLS) as stream:
        fragments = sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
        final = stream.get_final_completion().choices[0]
    calls = [(call.function.name, call.function.arguments) for call in final.message.tool_calls or []]
    assert calls == [("add", '{"a": 1}'), ("now", "{}")]
    assert (final.finish_reason, fragments > 2) == ("tool_calls", True)


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=["no tools", "none chosen"])
def test_call_syntax_without_tools_is_content(client: OpenAI, fields: dict[str, Any]) -> None:
    choice = _chat(client, f"say {ADD}", **fields).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (ADD, None, "stop")


def test_each_piece_of_reasoning_has_both_names(client: OpenAI, scripted: RunningServer) -> None:
    deltas = [event["choices"][0]["delta"] for event in _events(scripted, "say <think>hm so</think>yes")]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "hm so"
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    # Clients send back the message that they received.
    answer = _chat(client, "say <think>hm</think>yes").choices[0].message.model_dump(exclude_none=True)
    asked: Any = [{"role": "user", "content": "x"}, answer, {"role": "user", "content": "say z"}]
    again = client.chat.completions.create(model="demo", messages=asked)
    assert again.choices[0].message.content == "z"


def test_continuous_usage_and_metrics_come_on_request(scripted: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = _events(scripted, "say abc", stream_options=options, include_metrics=True)
    used = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"]]
    assert (used, used[-1]) == (sorted(used), 3)
    whole = scripted.client.post("/v1/chat/completions", json=body("say abc", include_metrics=True)).json()
    assert whole["metrics"].keys() == chunks[-1]["metrics"].keys()
    assert whole["metrics"]["output_tokens"] == chunks[-1]["metrics"]["output_tokens"] == 3


# prompt progress


def test_progress_follows_each_prompt_chunk_before_the_answer(scripted: RunningServer) -> None:
    prompt = " " * 1000 + "say a"
    with scripted.begun("count 900; delay 0.02", device="scripted:0"):
        # Next to this stream, each round reads one chunk of a prompt.
        chunks = _events(scripted, prompt, return_progress=True, device="scripted:0")
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    processed, times = ([each[name] for each in progress] for name in ("processed", "time_ms"))
    total = len(prompt) + 2
    assert len(progress) > 1
    assert (processed, processed[-1], times) == (sorted(set(processed)), total, sorted(times))
    assert {(each["total"], each["cache"]) for each in progress} == {(total, 0)}
    (choice,) = chunks[1]["choices"]
    assert (choice["delta"], choice["finish_reason"]) == ({}, None)
    first = next(place for place, chunk in enumerate(chunks) if chunk["choices"][0]["delta"].get("content"))
    assert not any("prompt_progress" in chunk for chunk in chunks[first:])


def test_each_answer_has_its_progress(scripted: RunningServer) -> None:
    chunks = _events(scripted, "say a", return_progress=True, n=2)
    assert {chunk["choices"][0]["index"] for chunk in chunks if "prompt_progress" in chunk} == {0, 1}


# predictions


def test_a_predicted_answer_is_the_same(demo: RunningServer) -> None:
    asked: Any = {"content": "What is the capital of Italy?", "temperature": 0}
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        content = _chat(client, **asked).choices[0].message.content
        predicted = _chat(client, **asked, prediction={"type": "content", "content": content})
    assert predicted.choices[0].message.content == content
