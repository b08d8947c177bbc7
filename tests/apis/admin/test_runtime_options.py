"""The runtime options over real sockets, on scripted engines; tests/engine/runners covers the real library."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer, last_event, refusal, wait_until
from tests.server_here import run_here

SLOW = "delay 0.02; count 1000"


@pytest.fixture
def server(own_scripted: RunningServer) -> Iterator[RunningServer]:
    yield own_scripted
    own_scripted.recover()


@pytest.fixture(scope="module")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that answers one request at a time and keeps four profiles."""
    options = ("--device", "scripted", "--max-batch-size", "1", "--profile-max-files", "4")
    with run_here(tmp_path_factory.mktemp("narrow"), *options) as server:
        yield server


@pytest.fixture
def narrow(narrow_server: RunningServer) -> Iterator[RunningServer]:
    yield narrow_server
    narrow_server.recover()


def options(server: RunningServer, device: str) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/v1/admin/runtime_options").json()["devices"][device]
    return found


def generated(server: RunningServer) -> int:
    """The number of output tokens of the only request."""
    (request,) = server.client.get("/v1/requests").json()["data"]
    tokens: int = request["output_tokens"]
    return tokens


def test_terminate_ends_running_requests_with_their_partial_text(server: RunningServer) -> None:
    with server.stream(SLOW, device="scripted:0") as events:
        reader = iter(events)
        assert json.loads(next(reader))["token"] == "1"
        state = server.options(terminate_session="1", device="scripted:0").json()
        assert state["devices"]["scripted:0"]["terminate_session"] == "1"
        last = last_event(reader)
    assert (last["finish_reason"], last["done"]) == ("terminated", True)


def test_terminate_ends_queued_requests(narrow: RunningServer) -> None:
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(narrow.chat(SLOW).json())) for _ in range(3)]
    for thread in threads:
        thread.start()

    def have_begun() -> list[bool]:
        return sorted(entry["output_tokens"] > 0 for entry in narrow.client.get("/v1/requests").json()["data"])

    wait_until(lambda: have_begun() == [False, False, True])
    narrow.options(terminate_session="1")
    for thread in threads:
        thread.join(90)
    assert [answer["finish_reason"] for answer in answers] == ["terminated"] * 3
    assert sorted(bool(answer["content"]) for answer in answers) == [False, False, True]


def test_requests_are_refused_between_termination_and_recovery(server: RunningServer) -> None:
    server.options(terminate_session="1")
    response = server.chat("say x")
    assert refusal(response)[:2] == (503, "session_terminated")
    assert "retry-after" not in response.headers
    with server.stream("say x") as events:
        assert events.response.status_code == 503
    assert [server.client.get(path).status_code for path in ("/readyz", "/livez")] == [503, 200]
    pid = server.device("scripted:0")["pid"]
    server.options(terminate_session="0")
    assert server.chat("say x").json()["content"] == "x"
    assert server.device("scripted:0")["pid"] == pid


def test_terminating_one_device_leaves_the_other_alone(server: RunningServer) -> None:
    server.options(terminate_session="1", device="scripted:0")
    assert server.chat("say x").json()["content"] == "x"
    assert server.chat("say x", device="scripted:0").status_code == 503
    assert server.client.get("/readyz").status_code == 200


def test_terminating_one_request_leaves_the_others(server: RunningServer) -> None:
    with (
        server.stream(SLOW, device="scripted:0") as victim,
        server.stream("delay 0.02; count 20", device="scripted:0") as other,
    ):
        name = victim.response.headers["x-request-id"]
        # Both options at once profile first.
        response = server.options(terminate_session="1", enable_profiling="1", request_id=name)
        assert response.json()["devices"]["scripted:0"]["terminate_session"] == "0"
        assert [last_event(iter(events))["finish_reason"] for events in (victim, other)] == ["terminated", "stop"]
    assert refusal(server.options(terminate_session="1", request_id="missing"))[:2] == (404, "request_not_found")
    assert server.chat("say x").status_code == 200


def test_profiling_writes_one_file_per_pass_while_it_is_on(server: RunningServer) -> None:
    def switch(prefix: str) -> dict[str, Any]:
        answer = server.options(enable_profiling=prefix, device="scripted:1").json()
        found: dict[str, Any] = answer["devices"]["scripted:1"]
        assert found["enable_profiling"] == prefix
        return found

    def files() -> int:
        return len(list(Path(options(server, "scripted:1")["profile_dir"]).glob("mine_*.json")))

    files_before = files()
    with server.stream(SLOW, device="scripted:1") as events:
        reader = iter(events)
        for _ in range(3):
            next(reader)
        name = events.response.headers["x-request-id"]
        on = switch("mine")
        first = on["requests"][0]["from_token"]
        assert ([request["request_id"] for request in on["requests"]], first >= 3) == ([name], True)
        for _ in range(first + 5 - 3):  # some were sent before the switch and are still in the socket's buffer
            next(reader)
        off = switch("0")
        written = off["profile_files"] - on["profile_files"]
        assert (off["requests"], written >= 5) == ([], True)
        later = generated(server) + 10
        wait_until(lambda: generated(server) >= later)
        server.options(terminate_session="1", request_id=name)
        assert last_event(reader)["finish_reason"] == "terminated"
    assert options(server, "scripted:1")["profile_files"] == off["profile_files"]
    assert files() - files_before == written


def test_profiling_may_concern_one_request_only(server: RunningServer) -> None:
    with server.stream(SLOW, device="scripted:0") as one, server.stream(SLOW, device="scripted:0") as other:
        name = one.response.headers["x-request-id"]
        next(iter(other))
        on = server.options(enable_profiling="1", request_id=name).json()["devices"]["scripted:0"]
        assert on["enable_profiling"] == "0"
        assert [request["request_id"] for request in on["requests"]] == [name]


def test_generation_continues_when_profiling_reaches_its_limit(narrow: RunningServer) -> None:
    narrow.options(enable_profiling="1")
    assert narrow.chat("count 10").json()["content"] == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    state = options(narrow, "scripted")
    assert (state["profile_files"], state["enable_profiling"]) == (4, "0")
    assert state["profile_stopped"] == "4 profiles reach GENAI_PROFILE_MAX_FILES (4)"
    files = sorted((narrow.folder / "profiles").rglob("*.json"))
    assert len(files) == 4
    assert all(file.name.startswith("onnxruntime_run_profile_") for file in files)
    files[0].unlink()
    narrow.options(enable_profiling="1")
    assert options(narrow, "scripted")["profile_stopped"] is None
