"""One log line per request, without any content of prompts and answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running_server import RunningServer, body, run_server, wait_until

SECRET = "xylophone"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("log"), "--device", "scripted", "--log-format", "json") as server:
        yield server


def _lines(server: RunningServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines()]


def _line(server: RunningServer, name: str) -> dict[str, Any]:
    """The single line about a request."""
    wait_until(lambda: any(line.get("id") == name for line in _lines(server)))
    (found,) = [line for line in _lines(server) if line.get("id") == name]
    return found


def _post(server: RunningServer, path: str, name: str, content: str, **fields: Any) -> int:
    answer = server.client.post(path, json=body(content, **fields), headers={"x-request-id": name})
    return answer.status_code


def test_log_line_has_model_device_and_timings(server: RunningServer) -> None:
    assert _post(server, "/v1/chat", "whole", f"say {SECRET}") == 200
    line = _line(server, "whole")
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat", 200)
    assert (line["model"], line["device"], line["finish_reason"]) == ("demo", "scripted", "stop")
    assert (line["prompt_tokens"], line["output_tokens"]) == (len(f"say {SECRET}\n\x04"), len(SECRET))
    assert line["ttft"] > 0
    parts = ("receive", "load", "prepare", "queue", "prefill", "decode", "deliver")
    assert sum(line[part] for part in parts) == pytest.approx(line["total_latency"], abs=1e-5)  # six digits each
    assert line["seconds"] >= line["total_latency"] >= line["ttft"]
    assert "error" not in line
    assert line["unique_id"].startswith("req-")  # as in GET /v1/requests, because clients may reuse an id


def test_a_stream_has_a_line_at_its_end(server: RunningServer) -> None:
    assert _post(server, "/v1/chat/completions", "streamed", "count 3", stream=True, n=2) == 200
    line = _line(server, "streamed")
    assert (line["path"], line["finish_reason"]) == ("/v1/chat/completions", "stop,stop")
    assert line["prompt_tokens"] == len("count 3\n\x04")
    assert line["output_tokens"] == 2 * len("1, 2, 3")


def test_a_refusal_has_its_code_and_no_model(server: RunningServer) -> None:
    assert _post(server, "/v1/chat", "refused", "say a", strem=True) == 400
    line = _line(server, "refused")
    assert (line["status"], line["error"]) == (400, "unknown_parameter")
    assert "model" not in line


def test_an_error_after_the_headers_is_in_the_line_too(server: RunningServer) -> None:
    assert _post(server, "/v1/chat/stream", "broken", "count 9; fail at 2") == 200
    line = _line(server, "broken")
    assert (line["status"], line["error"], line["finish_reason"]) == (200, "runner_failed", "runner_failed")


def test_disconnected_client_is_logged_as_abort(server: RunningServer) -> None:
    with server.stream("count 500; delay 0.02") as events:
        next(iter(events))
    wait_until(lambda: any(line.get("finish_reason") == "abort" for line in _lines(server)))


def test_health_checks_are_not_logged_nor_unknown_paths_quoted(server: RunningServer) -> None:
    server.client.get("/healthz", headers={"x-request-id": "look"})
    assert _post(server, f"/{SECRET}", "astray", "say a") == 404
    line = _line(server, "astray")
    assert (line["status"], line["error"]) == (404, "not_found")
    assert "path" not in line
    assert not [line for line in _lines(server) if line.get("id") == "look"]


def test_no_content_is_in_any_line(server: RunningServer) -> None:
    assert _post(server, "/v1/chat", "private", f"say {SECRET}") == 200
    _line(server, "private")
    assert SECRET not in server.log()


def test_text_log_has_the_fields_after_the_message(scripted: RunningServer) -> None:
    assert _post(scripted, "/v1/chat", "as-text", "say a") == 200
    wait_until(lambda: "id=as-text" in scripted.log())
    (line,) = [line for line in scripted.log().splitlines() if "id=as-text" in line]
    assert (
        "INFO genai_server.http.telemetry.request_log: request id=as-text method=POST path=/v1/chat status=200" in line
    )
    assert line.endswith("finish_reason=stop")
