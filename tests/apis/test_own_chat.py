"""/v1/chat and /v1/chat/stream over real sockets."""

import json

import pytest

from tests.running_server import RunningServer, body, wait_until


def test_chat_answers_in_one_piece_with_metrics(scripted: RunningServer) -> None:
    response = scripted.chat("say hello")
    assert response.status_code == 200
    answer = response.json()
    assert answer["content"] == "hello"
    assert answer["finish_reason"] == "stop"
    assert answer["id"] == response.headers["x-request-id"]
    metrics = answer["metrics"]
    assert set(metrics) == {
        "ttft",
        "total_latency",
        "tokens_per_second",
        "output_tokens_per_second",
        "input_tokens",
        "output_tokens",
        "tpot",
        "breakdown",
        "model",
    }
    assert metrics["ttft"] is None
    assert metrics["output_tokens"] == 5
    assert metrics["model"] == "demo"
    assert metrics["output_tokens_per_second"] == pytest.approx(1 / metrics["tpot"], rel=1e-4)
    total = metrics["input_tokens"] + metrics["output_tokens"]
    assert metrics["tokens_per_second"] == pytest.approx(total / metrics["total_latency"], rel=1e-4)


def test_rates_of_a_single_token_are_unknown(scripted: RunningServer) -> None:
    metrics = scripted.chat("say x").json()["metrics"]
    assert metrics["output_tokens"] == 1
    assert metrics["tpot"] is None
    assert metrics["output_tokens_per_second"] is None


def test_stream_sends_each_token_and_ends_with_done_and_metrics(scripted: RunningServer) -> None:
    with scripted.stream("count 3") as events:
        assert events.response.headers["content-type"].startswith("text/event-stream")
        found = [json.loads(event) for event in events]
    assert [event["token"] for event in found[:-1]] == list("1, 2, 3")
    last = found[-1]
    assert last["done"] is True
    assert last["token"] == "[DONE]"
    assert last["finish_reason"] == "stop"
    assert last["id"] == events.response.headers["x-request-id"]
    assert 0 < last["metrics"]["ttft"] <= last["metrics"]["total_latency"]


def test_tokens_are_sent_while_the_answer_is_made(scripted: RunningServer) -> None:
    with scripted.stream("delay 0.02; count 1000") as events:
        reader = iter(events)
        first = [json.loads(next(reader))["token"] for _ in range(5)]
        assert "".join(first) == "1, 2,"
        assert scripted.device("scripted:0")["running"] + scripted.device("scripted:1")["running"] == 1
        first += [json.loads(next(reader))["token"] for _ in range(64)]
        assert "".join(first) == ", ".join(str(number) for number in range(1, 21))


def test_unicode_line_separators_are_escaped(scripted: RunningServer) -> None:
    with scripted.stream("say a\u2028b\u2029c\x85d") as events:
        found = [json.loads(event)["token"] for event in events]
    assert "".join(found[:-1]) == "a\u2028b\u2029c\x85d"


def test_a_character_cut_by_max_tokens_is_left_out(scripted: RunningServer) -> None:
    answer = scripted.chat("say ab👋", max_tokens=4).json()
    assert answer["content"] == "ab"
    assert answer["finish_reason"] == "length"
    assert answer["metrics"]["output_tokens"] == 4


def test_the_request_runs_on_the_device_that_it_names(scripted: RunningServer) -> None:
    for device in ("scripted:0", "scripted:1"):
        with scripted.stream("delay 0.02; count 300", device=device) as events:
            next(iter(events))
            assert scripted.device(device)["running"] == 1
        wait_until(lambda device=device: scripted.idle(device))  # type: ignore[misc]


def test_default_device_is_the_least_loaded(scripted: RunningServer) -> None:
    with scripted.stream("delay 0.02; count 300", device="scripted:0") as busy:
        next(iter(busy))
        with scripted.stream("delay 0.02; count 300") as events:
            next(iter(events))
            assert scripted.device("scripted:1")["running"] == 1


def test_disconnected_streaming_client_frees_its_slot(scripted: RunningServer) -> None:
    with scripted.stream("delay 0.02; count 1000", device="scripted:0") as events:
        next(iter(events))
    wait_until(lambda: scripted.idle("scripted:0"))


def test_disconnected_client_without_a_stream_frees_its_slot(scripted: RunningServer) -> None:
    import socket

    payload = json.dumps(body("delay 0.02; count 1000", device="scripted:0")).encode()
    host, port = scripted.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        head = f"POST /v1/chat HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        sock.sendall(head.encode() + f"content-length: {len(payload)}\r\n\r\n".encode() + payload)
        wait_until(lambda: scripted.device("scripted:0")["running"] == 1)
    wait_until(lambda: scripted.idle("scripted:0"))


def test_a_failure_after_the_headers_is_the_last_event(scripted: RunningServer) -> None:
    with scripted.stream("fail at 2; say hello") as events:
        found = [json.loads(event) for event in events]
    assert [event.get("token") for event in found[:-1]] == ["h", "e"]
    assert found[-1] == {
        "error": {"message": "scripted failure", "type": "server_error", "param": None, "code": "runner_failed"}
    }


def test_the_failure_of_one_request_disturbs_no_other(scripted: RunningServer) -> None:
    with scripted.stream("delay 0.02; count 30", device="scripted:0") as events:
        reader = iter(events)
        next(reader)
        assert scripted.chat("fail at 0", device="scripted:0").status_code == 500
        found = [json.loads(event) for event in reader]
    assert found[-1]["finish_reason"] == "stop"
