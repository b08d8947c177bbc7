"""/v1/chat and /v1/chat/stream over real sockets."""

import json
from itertools import islice

import pytest

from tests.running_server import RunningServer, last_event, wait_until


def test_chat_answers_in_one_piece_with_metrics(scripted: RunningServer) -> None:
    response = scripted.chat("say hello")
    assert response.status_code == 200
    answer = response.json()
    assert (answer["content"], answer["finish_reason"]) == ("hello", "stop")
    assert answer["id"] == response.headers["x-request-id"]
    metrics = answer["metrics"]
    rates = {"ttft", "total_latency", "tokens_per_second", "output_tokens_per_second", "tpot", "breakdown"}
    assert set(metrics) == rates | {"input_tokens", "output_tokens", "model"}
    assert (metrics["ttft"], metrics["output_tokens"], metrics["model"]) == (None, 5, "demo")
    assert metrics["output_tokens_per_second"] == pytest.approx(1 / metrics["tpot"], rel=1e-4)
    total = metrics["input_tokens"] + metrics["output_tokens"]
    assert metrics["tokens_per_second"] == pytest.approx(total / metrics["total_latency"], rel=1e-4)
    single = scripted.chat("say x").json()["metrics"]
    assert (single["output_tokens"], single["tpot"], single["output_tokens_per_second"]) == (1, None, None)


def test_stream_sends_each_token_and_ends_with_done_and_metrics(scripted: RunningServer) -> None:
    with scripted.stream("count 3") as events:
        assert events.response.headers["content-type"].startswith("text/event-stream")
        *found, last = [json.loads(event) for event in events]
    assert [event["token"] for event in found] == list("1, 2, 3")
    id = events.response.headers["x-request-id"]
    assert last == last | {"done": True, "token": "[DONE]", "finish_reason": "stop", "id": id}
    assert 0 < last["metrics"]["ttft"] <= last["metrics"]["total_latency"]


def test_tokens_are_sent_while_the_answer_is_made(scripted: RunningServer) -> None:
    with scripted.stream("delay 0.02; count 1000") as events:
        first = [json.loads(event)["token"] for event in islice(events, 5)]
        assert "".join(first) == "1, 2,"
        assert scripted.device("scripted:0")["running"] + scripted.device("scripted:1")["running"] == 1
        first += [json.loads(event)["token"] for event in islice(events, 64)]
        assert "".join(first) == ", ".join(str(number) for number in range(1, 21))


def test_unicode_line_separators_are_escaped(scripted: RunningServer) -> None:
    with scripted.stream("say a\u2028b\u2029c\x85d") as events:
        found = [json.loads(event)["token"] for event in events]
    assert "".join(found[:-1]) == "a\u2028b\u2029c\x85d"


def test_a_character_cut_by_max_tokens_is_left_out(scripted: RunningServer) -> None:
    answer = scripted.chat("say ab👋", max_tokens=4).json()
    assert (answer["content"], answer["finish_reason"], answer["metrics"]["output_tokens"]) == ("ab", "length", 4)


def test_the_request_runs_on_the_device_that_it_names_or_the_least_loaded(scripted: RunningServer) -> None:
    for device in ("scripted:0", "scripted:1"):
        with scripted.stream("delay 0.02; count 300", device=device) as events:
            next(iter(events))
            assert scripted.device(device)["running"] == 1
            if device == "scripted:0":
                with scripted.stream("delay 0.02; count 300") as others:
                    next(iter(others))
                    assert scripted.device("scripted:1")["running"] == 1
        wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


def test_a_failure_after_the_headers_is_the_last_event(scripted: RunningServer) -> None:
    with scripted.stream("fail at 2; say hello") as events:
        *found, last = [json.loads(event) for event in events]
    assert [event.get("token") for event in found] == ["h", "e"]
    error = {"message": "scripted failure", "type": "server_error", "param": None, "code": "runner_failed"}
    assert last == {"error": error}


def test_the_failure_of_one_request_disturbs_no_other(scripted: RunningServer) -> None:
    with scripted.begun("delay 0.02; count 30", device="scripted:0") as events:
        assert scripted.chat("fail at 0", device="scripted:0").status_code == 500
        assert last_event(events)["finish_reason"] == "stop"
