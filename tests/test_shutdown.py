"""How the server stops, on real processes: requests that may end, refusals, and the exit status."""

import json
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from genai_server.profiles.profile_files import read_profile
from tests.model_edits import edited_config
from tests.running_server import (
    DEMO,
    PATIENCE,
    EventReader,
    RunningServer,
    api_processes,
    body,
    last_event,
    run_server,
    wait_until,
)
from tests.running_server import serve_with_uvicorn as uvicorn

LONG = "delay 0.02; count 1000"
KINDS = [pytest.param([], id="one"), pytest.param(["--workers", "2"], id="workers", marks=pytest.mark.slow)]


@contextmanager
def told_to_stop(server: RunningServer, script: str, number: int = signal.SIGTERM) -> Iterator[Iterator[str]]:
    """A running stream on a server that is shutting down, or has just ended with it."""
    with server.begun(script) as reader:
        server.process.send_signal(number)
        wait_until(lambda: not is_ready(server.url))
        yield reader


def ask(server: RunningServer, method: str, path: str, **fields: Any) -> httpx.Response:
    """A response on a separate connection."""
    return httpx.request(method, f"{server.url}{path}", timeout=PATIENCE, **fields)


def is_ready(url: str) -> bool:
    """Whether a server is ready, asked on a separate connection."""
    try:
        return httpx.get(f"{url}/readyz", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


class Unread(NamedTuple):
    """A server that was stopped at once while one client does not read, and the last events of the other clients."""

    server: RunningServer
    ended: dict[str, Any]
    failed: dict[str, Any]


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unread]:
    options = ("--device", "scripted", "--drain-timeout", "0", "--max-length", "4000")
    fields = {"stream": True, "logprobs": True, "top_logprobs": 20}
    content = json.dumps(body("count 900", **fields)).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    with run_server(tmp_path_factory.mktemp("unread"), *options) as server, socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        idle.sendall(head.encode() + content)
        assert idle.recv(12) == b"HTTP/1.1 200"  # the engine has accepted it
        wait_until(lambda: server.idle("scripted"))
        with (
            server.stream(LONG) as events,
            server.client.stream("POST", "/v1/responses", json={"input": LONG, "stream": True}) as response,
        ):
            readers = [iter(events), iter(EventReader(response))]
            for reader in readers:
                next(reader)
            server.process.send_signal(signal.SIGTERM)
            ended, failed = (last_event(reader) for reader in readers)
        yield Unread(server, ended, failed)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param(["--reload"], signal.SIGTERM, id="reload", marks=pytest.mark.slow),
        pytest.param(["--workers", "2"], signal.SIGINT, id="workers"),
    ],
)
def test_running_answers_complete_and_the_status_is_0(own_folder: Path, kind: list[str], number: int) -> None:
    with run_server(own_folder, "--device", "scripted", *kind) as server:
        with told_to_stop(server, "delay 0.02; count 20", number) as reader:
            assert last_event(reader)["finish_reason"] == "stop"
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_request_that_outlasts_the_drain_ends_with_status_3(own_folder: Path, kind: list[str]) -> None:
    options = ("--device", "scripted", "--drain-timeout", "2", "--max-batch-size", "2", *kind)
    with run_server(own_folder, *options) as server:
        plain: list[httpx.Response] = []

        def ask_plainly() -> None:
            plain.append(ask(server, "POST", "/v1/chat", json=body(LONG)))

        threads = [threading.Thread(target=ask_plainly) for _ in range(3)]
        threads[0].start()
        wait_until(lambda: server.device("scripted")["running"] == 1)
        with server.begun(LONG) as reader:
            for thread in threads[1:]:
                thread.start()
            wait_until(lambda: server.device("scripted")["waiting"] == 2)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not is_ready(server.url))
            assert last_event(reader)["error"]["code"] == "server_stopping"
        for thread in threads:
            thread.join(PATIENCE)
        # One of them was running, two were waiting.
        assert [(each.status_code, each.json()["error"]["code"]) for each in plain] == [(503, "server_stopping")] * 3
        assert {answer.headers["retry-after"] for answer in plain} == {"1"}
        assert server.process.wait(PATIENCE) == 3


def test_draining_server_accepts_nothing_and_closes_connections(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted") as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as kept:
            assert "connection" not in kept.get("/healthz").headers
            with server.stream("delay 0.02; count 20") as short, told_to_stop(server, LONG) as reader:
                answer = kept.post("/v1/chat", json=body("say x"))
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "server_draining"
                assert answer.headers["connection"] == "close"
                assert int(answer.headers["retry-after"]) > 0
                assert ask(server, "GET", "/healthz").status_code == 200
                assert ask(server, "GET", "/livez").status_code == 200
                readiness = ask(server, "GET", "/readyz")
                assert readiness.json()["reason"] == "the server is about to stop"
                assert last_event(iter(short))["finish_reason"] == "stop"
                # An operator may still end running requests.
                assert ask(server, "POST", "/v1/admin/runtime_options", json={"terminate_session": "1"}).is_success
                assert last_event(reader)["finish_reason"] == "terminated"
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_signal_before_the_start_is_over_is_no_error(own_folder: Path) -> None:
    script = own_folder / "early.py"
    script.write_text(
        "import signal, sys\n"
        "from genai_server.cli import main\n"
        "from genai_server.cli.serve import server_lifetime\n"
        "begin = server_lifetime.SupervisorThread\n"
        "def interrupted(*given, **options):\n"
        "    thread = begin(*given, **options)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    return thread\n"
        "server_lifetime.SupervisorThread = interrupted\n"
        "sys.exit(main(['serve', *sys.argv[1:]]))\n",
        encoding="utf-8",
    )
    program = [sys.executable, str(script)]
    with run_server(own_folder, "--device", "scripted", program=program, ready=False) as server:
        assert server.process.wait(PATIENCE) == 0
        assert "stopped during the start" in server.log()
        assert "ERROR" not in server.log()


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_signal_ends_now(own_folder: Path, kind: list[str]) -> None:
    with run_server(own_folder, "--device", "scripted", "--drain-timeout", "600", *kind) as server:
        with server.stream("delay 0.02; count 20") as short, told_to_stop(server, LONG) as reader:
            assert last_event(iter(short))["finish_reason"] == "stop"
            server.process.send_signal(signal.SIGTERM)
            assert last_event(reader)["error"]["code"] == "server_stopping"
        assert server.process.wait(PATIENCE) == 3


@pytest.mark.slow
def test_signals_end_workers_that_hang_too(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--drain-timeout", "600", "--workers", "2") as server:
        for process in api_processes(server):
            process.suspend()

        def has_ended() -> bool:
            server.process.send_signal(signal.SIGTERM)
            return server.process.poll() is not None

        wait_until(has_ended)


@pytest.mark.slow
def test_shutdown_without_a_drain_ends_running_requests_at_once(unread: Unread) -> None:
    assert unread.ended["error"]["code"] == "server_stopping"
    assert unread.failed["type"] == "response.failed"
    assert unread.failed["response"]["error"]["type"] == "server_stopping"
    assert unread.server.process.wait(PATIENCE) == 3


@pytest.mark.slow
def test_engine_death_does_not_delay_the_drain(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--drain-timeout", "600") as server:
        with told_to_stop(server, "delay 0.02; crash at 100; count 1000") as reader:
            assert last_event(reader)["error"]["code"] == "engine_died"
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_plain_uvicorn_drains_running_answers(own_folder: Path) -> None:
    with uvicorn(own_folder, GENAI_DEVICE="scripted") as (process, url, _):
        wait_until(lambda: is_ready(url))
        with httpx.stream(
            "POST", f"{url}/v1/chat/stream", json=body("delay 0.02; count 9"), timeout=PATIENCE
        ) as response:
            reader = iter(EventReader(response))
            next(reader)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: not is_ready(url))
            assert last_event(reader)["finish_reason"] == "stop"
        process.wait(PATIENCE)


@pytest.mark.slow
def test_session_profile_is_complete_after_the_end(own_folder: Path) -> None:
    model = own_folder / "model"
    shutil.copytree(DEMO, model)
    with edited_config(model) as config:
        config["model"]["decoder"].setdefault("session_options", {})["enable_profiling"] = "whole"
    with run_server(own_folder, "--model-dir", str(model)) as server:
        server.chat("Hello!", max_tokens=5)
        for url, given in (
            ("/v1/admin/runtime_options", {"enable_profiling": "single"}),
            ("/v1/admin/profiles", {"prefix": "mine"}),
        ):
            response = server.client.post(url, json=given)
            assert response.status_code == 400, response.text
            assert str(model / "genai_config.json") in response.json()["error"]["message"]
            assert "contain enable_profiling" in response.json()["error"]["message"]
        assert server.client.get("/v1/admin/runtime_options").json()["devices"]["cpu"]["enable_profiling"] == "0"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    (path,) = (own_folder / "profiles" / "cpu").glob("whole_*.json")
    assert len(read_profile(path).passes) > 0


@pytest.mark.slow
def test_a_response_in_the_background_ends_once_at_a_stop(tmp_path: Path) -> None:
    options = ("--device", "scripted", "--max-length", "4000")
    stored = ("--response-store-file", str(tmp_path / "responses.sqlite"))
    asked = {"input": LONG, "background": True}
    with run_server(tmp_path, *options, *stored, "--drain-timeout", "10") as server:
        cut = ask(server, "POST", "/v1/responses", json=asked).json()["id"]
        short = ask(server, "POST", "/v1/responses", json={**asked, "input": "delay 0.01; count 5"}).json()["id"]
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)
    with run_server(tmp_path, *options, *stored) as server:
        ended = ask(server, "GET", f"/v1/responses/{cut}").json()
        assert (ended["status"], ended["error"]["type"]) == ("failed", "server_stopping")
        assert ended["output"][0]["content"][0]["text"].startswith("1, 2")
        assert ask(server, "GET", f"/v1/responses/{short}").json()["status"] == "completed"
        killed = ask(server, "POST", "/v1/responses", json=asked).json()["id"]
        server.process.kill()
        server.process.wait(PATIENCE)
    with run_server(tmp_path, *options, *stored) as server:
        ended = ask(server, "GET", f"/v1/responses/{killed}").json()
        assert (ended["status"], ended["error"]["type"]) == ("failed", "server_stopping")


# Code that hangs at the end of an API process and runs before the server.
HANGS = {
    "a thread of a pool": "ThreadPoolExecutor(1).submit(threading.Event().wait)\n",
    "the event loop": "ResponseStore.close = lambda *_: threading.Event().wait()\n",
    "the supervisor": "SupervisorThread.end = lambda *_: threading.Event().wait()\n",
    "standard error": "async def fill(*_):\n"
    "    ours, theirs = os.pipe()\n"
    "    os.dup2(theirs, 2)\n"
    "    while True: os.write(2, bytes(4096))\n"
    "ResponseStore.close = fill\n",
}
LIMITED = """import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from genai_server.apis.responses.store import ResponseStore
from genai_server.cli import main
from genai_server.cli.serve import server_lifetime, shutdown
from genai_server.cli.serve.attach import SupervisorThread
shutdown.ENDING = server_lifetime.ENDING = 1
"""


@contextmanager
def hanging(folder: Path, hang: str, *options: str) -> Iterator[RunningServer]:
    """A server that hangs when it stops, with a time limit of one second."""
    script = folder / "hangs.py"
    script.write_text(f"{LIMITED}{HANGS[hang]}sys.exit(main(['serve', *sys.argv[1:]]))\n", encoding="utf-8")
    with run_server(folder, "--device", "scripted", *options, program=[sys.executable, str(script)]) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("is_hurried", [False, True])
def test_a_stop_ends_a_process_that_hangs_and_so_does_a_second_signal(
    own_folder: Path, hang: str, is_hurried: bool
) -> None:
    with hanging(own_folder, hang, "--drain-timeout", "600" if is_hurried else "1") as server:
        server.process.send_signal(signal.SIGTERM)
        if is_hurried:
            wait_until(lambda: not server.is_ready())
            time.sleep(0.5)  # it hangs by now
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) in (-signal.SIGKILL, -signal.SIGALRM)
            return
        assert server.process.wait(PATIENCE) == -signal.SIGALRM
        if hang != "standard error":
            assert "Current thread" in server.log() or "most recent call first" in server.log()
