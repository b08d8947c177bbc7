"""A server whose requests run in onnxruntime-genai's own batch, as its clients see it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.running_server import DEMO, RunningServer, wait_until
from tests.server_here import run_here

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    options = ("--model-dir", str(DEMO), "--scheduler", "library")
    with run_here(tmp_path_factory.mktemp("library"), *options) as server:
        yield server


def complete(server: RunningServer, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}]} | fields
    return server.client.post("/v1/chat/completions", json=body)


def test_health_says_which_batch_it_is(server: RunningServer) -> None:
    batching = server.device("cpu")["batching"]
    assert (batching["scheduler"], batching["num_slots"]) == ("library", 4)


def test_many_clients_are_answered(server: RunningServer) -> None:
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: server.chat("What is the capital of France?").json(), range(20)))
    assert {answer["content"] for answer in answers} == {answers[0]["content"]}
    assert "Paris" in answers[0]["content"]
    assert {answer["finish_reason"] for answer in answers} == {"stop"}


def test_answer_is_streamed_and_a_lost_client_frees_its_place(server: RunningServer) -> None:
    with server.stream("Count from 1 to 200.", max_tokens=900, ignore_eos=True) as events:
        first = [json.loads(event)["token"] for event, _ in zip(events, range(5), strict=False)]
    assert "".join(first).startswith("1, 2")
    wait_until(lambda: server.idle("cpu"))
    assert "Paris" in server.chat("What is the capital of France?").json()["content"]


def test_a_schema_and_a_forced_tool_are_kept_to(server: RunningServer) -> None:
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    schema = {"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": False}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = complete(server, response_format=shape).json()["choices"][0]["message"]["content"]
    assert isinstance(json.loads(answer)["n"], int)
    forced = complete(server, tools=[TOOL], tool_choice="required", max_tokens=100).json()
    (call,) = forced["choices"][0]["message"]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)


@pytest.mark.parametrize(("field", "value"), [("logprobs", True), ("frequency_penalty", 0.5), ("logit_bias", {"5": 1})])
def test_unsupported_field_is_a_400_that_names_it(server: RunningServer, field: str, value: Any) -> None:
    response = complete(server, **{field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert "onnxruntime-genai's own batch" in response.json()["error"]["message"]
