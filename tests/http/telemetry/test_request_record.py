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


def test_log_line_has_model_device_and_timings_and_no_content(server: RunningServer) -> None:
    assert _post(server, "/v1/chat", "whole", f"say {SECRET}") == 200
    line = _line(server, "whole")
    assert {"method": "POST", "path": "/v1/chat", "status": 200}.items() <= line.items()
    assert {"model": "demo", "device": "scripted", "finish_reason": "stop"}.items() <= line.items()
    assert (line["prompt_tokens"], line["output_tokens"]) == (len(f"say {SECRET}\n\x04"), len(SECRET))
    parts = ("receive", "load", "prepare", "queue", "prefill", "decode", "deliver")
    assert sum(line[part] for part in parts) == pytest.approx(line["total_latency"], abs=1e-5)  # six digits each
    assert line["seconds"] >= line["total_latency"] >= line["ttft"] > 0
    assert "error" not in line
    assert line["unique_id"].startswith("req-")  # as in GET /v1/requests, because clients may reuse an id
    assert SECRET not in server.log()


STREAMED = {"finish_reason": "stop,stop", "prompt_tokens": len("count 3\n\x04"), "output_tokens": 2 * len("1, 2, 3")}
FAILED = {"error": "runner_failed", "finish_reason": "runner_failed"}


@pytest.mark.parametrize(
    ("name", "path", "content", "fields", "expected"),
    [
        ("streamed", "/v1/chat/completions", "count 3", {"stream": True, "n": 2}, STREAMED | {"status": 200}),
        ("broken", "/v1/chat/stream", "count 9; fail at 2", {}, FAILED | {"status": 200}),
        ("refused", "/v1/chat", "say a", {"strem": True}, {"status": 400, "error": "unknown_parameter"}),
    ],
)
def test_the_line_comes_at_the_end_and_has_the_error(
    server: RunningServer, name: str, path: str, content: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert _post(server, path, name, content, **fields) == expected["status"]
    line = _line(server, name)
    assert (expected | {"path": path}).items() <= line.items()
    assert ("model" in line) is (expected["status"] == 200)


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


def test_text_log_has_the_fields_after_the_message(scripted: RunningServer) -> None:
    assert _post(scripted, "/v1/chat", "as-text", "say a") == 200
    wait_until(lambda: "id=as-text" in scripted.log())
    (line,) = [line for line in scripted.log().splitlines() if "id=as-text" in line]
    assert "INFO genai_server.http.telemetry.request_log: request id=as-text method=POST path=/v1/chat status" in line
    assert line.endswith("finish_reason=stop")
