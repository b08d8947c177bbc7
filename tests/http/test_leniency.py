"""Fields that lenient endpoints ignore instead of refusing them, over real sockets."""

import json
import logging
import tracemalloc
import weakref
from functools import partial
from typing import Any

import httpx
import pytest

from genai_server.http.error_wording import FieldNames
from genai_server.http.leniency import IGNORED_HEADER, Leniency, RemovalRules, objects_at, remove, replace_media
from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import module_server

WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object"}}
CALL = 'say <tool_call>⏎{"name": "math__add", "arguments": {"a": 1}}⏎</tool_call>'


strict = module_server(*SCRIPTED, GENAI_STRICT="true")


def _message(server: RunningServer, *, path: str = "/v1/messages", content: Any = "say hi", **fields: Any) -> Any:
    body = {"max_tokens": 50, "messages": [{"role": "user", "content": content}], **fields}
    return server.client.post(path, json=body)


def _response(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/responses", json={"input": "say hi", **fields})


def test_a_tool_that_is_left_out_cannot_be_forced(scripted: RunningServer) -> None:
    response = _message(scripted, tools=[WEB_SEARCH], tool_choice={"type": "any"})
    assert (response.status_code, "tool_choice" in response.text) == (400, True)


ASKED = {"messages": [{"role": "user", "content": "x"}]}
EFFORT = {"reasoning_effort": "high", "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        ("/v1/messages", ASKED | {"output_config": {"effort": "high"}, "max_tokens": 1}, "output_config.effort"),
        ("/v1/messages/count_tokens", ASKED | {"output_config": {"effort": "high"}}, "output_config.effort"),
        ("/v1/chat/completions", ASKED | EFFORT, "reasoning_effort"),
        ("/v1/chat", ASKED | EFFORT, None),
        ("/v1/responses", {"input": "x", "reasoning": {"effort": "high"}, "max_output_tokens": 1}, "reasoning.effort"),
        ("/api/chat", ASKED | {"think": True, "options": {"num_predict": 1}, "stream": False}, "think"),
    ],
)
def test_effort_is_ignored_by_a_model_that_does_not_reason(
    demo: RunningServer, path: str, body: dict[str, Any], ignored: str | None
) -> None:
    response = demo.client.post(path, json=body)
    assert (response.status_code, response.headers.get(IGNORED_HEADER)) == (200 if ignored else 400, ignored)


def test_limit_above_the_context_is_capped(scripted: RunningServer) -> None:
    whole = _message(scripted, max_tokens=32_000)
    assert (whole.json()["stop_reason"], whole.headers[IGNORED_HEADER]) == ("end_turn", "max_tokens (capped to 1992)")
    cut = _message(scripted, content="x" * 1990, max_tokens=32_000)
    ended = (cut.json()["stop_reason"], cut.json()["usage"]["output_tokens"])
    assert ended == ("model_context_window_exceeded", 8)


def test_a_request_that_has_ended_does_not_hold_its_body() -> None:
    leniency = Leniency(RemovalRules())
    names = FieldNames({"field": "outer field"})
    with leniency.with_names(names):
        assert leniency.leave_out("field")
    held = weakref.ref(names)
    del names
    assert (held(), leniency.report()) == (None, {IGNORED_HEADER: "outer field"})


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_function_in_a_namespace_has_both_names(scripted: RunningServer, stream: bool) -> None:
    tools: list[Any] = [{"type": "namespace", "name": "math", "description": "Numbers.", "tools": [FUNCTION]}, FUNCTION]
    response = _response(scripted, input=CALL, tools=tools, stream=stream)
    last = response.text.strip().splitlines()[-1].removeprefix("data: ")
    found = json.loads(last)["response"] if stream else response.json()
    (call,) = found["output"]
    assert (call["namespace"], call["name"]) == ("math", "add")
    functions = [{**FUNCTION, "description": None, "strict": None}]
    assert found["tools"] == [{**tools[0], "tools": functions}, *functions]
    assert "math__add" not in response.text


def test_too_long_full_name_is_refused_in_tools_but_not_in_calls(scripted: RunningServer) -> None:
    long = {**FUNCTION, "name": "n" * 128}
    space = {"type": "namespace", "name": "m" * 128, "tools": [long]}
    response = _response(scripted, tools=[space])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[0].namespace")
    brought = _response(scripted, input=[{"type": "additional_tools", "role": "developer", "tools": [space]}])
    assert (brought.status_code, brought.json()["error"]["param"]) == (400, "input[0].tools[0].namespace")
    call = {"type": "function_call", "call_id": "1", "name": "n" * 128, "namespace": "m" * 128, "arguments": "{}"}
    assert _response(scripted, input=[{"role": "user", "content": "x"}, call]).status_code == 200


def _named(index: int, body: list[str]) -> list[str]:
    return [f"a_name[{index}].x", *body]


def test_each_name_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for index in range(3):
            leniency = Leniency(RemovalRules(rules=(partial(_named, index),)))
            leniency.apply(["a_second_name"])
            leniency.report()
    assert [record.args for record in caplog.records] == [("a_name[0].x",), ("a_second_name",)]


@pytest.mark.parametrize(
    ("names", "begin", "end"),
    [
        ([f"messages[{index}] (image)" for index in range(500)], "messages[0] (image), messages[1]", " (image), ..."),
        (["é" * 5000], "\\xe9\\xe9", ""),
        (["conversation (item a\r\nset-cookie: b\x7f)"], "conversation (item a\\r\\nset-cookie: b\\x7f)", ""),
    ],
    ids=["long", "not ASCII", "line breaks"],
)
def test_any_names_fit_the_header(names: list[str], begin: str, end: str) -> None:
    leniency = Leniency(RemovalRules(rules=(lambda body: names,)))
    leniency.apply({})
    value = leniency.report()[IGNORED_HEADER]
    assert (len(value) < 2100, value.isascii()) == (True, True)
    assert (value.startswith(begin), value.endswith(end)) == (True, True)


@pytest.mark.parametrize(
    ("path", "places"),
    [("", [""]), ("a", []), ("b", ["b"]), ("a[]", ["a[1]"]), ("a[].b", ["a[1].b"]), ("b[]", []), ("c.d", [])],
)
def test_a_path_leads_to_objects_and_skips_all_else(path: str, places: list[str]) -> None:
    body = {"a": [1, {"b": {"x": 1}}], "b": {"y": 2}, "c": 5}
    assert [place for place, _ in objects_at(body, path)] == places


def test_values_that_are_not_objects_are_skipped_cheaply() -> None:
    body = {"a": [{"b": ["x"] * 300_000}, {"b": []}]}
    tracemalloc.start()
    try:
        assert list(objects_at(body, "a[].b[]")) == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3_000_000  # a place for each would take 20 MB; other threads take some, too


def test_removed_fields_are_named_unless_null() -> None:
    body: Any = {"a": [{"x": 0}, {"x": None}, {}], "x": 1}
    assert remove(body, "a[].x") == ["a[0].x"]
    assert remove(body, "x") == ["x"]
    assert body == {"a": [{}, {}, {}]}


def test_a_medium_becomes_a_text_that_says_so() -> None:
    body: Any = {"a": [{"type": "photo", "data": "AA=="}, {"type": "text"}]}
    assert replace_media(body, {"photo": "image"}, "text", "a[]") == ["a[0] (image)"]
    assert body["a"] == [{"type": "text", "text": "[image left out: this model reads text only]"}, {"type": "text"}]
