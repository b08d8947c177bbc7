"""A server with far fewer files than clients, as under `ulimit -n 64`."""

import json
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.raw_http import RawAnswer, answers, connect, read_to_end
from tests.running_server import PATIENCE, ROOT, RunningServer, body, run_server, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")]
FILES = 64


@pytest.fixture
def tight(own_folder: Path) -> Iterator[RunningServer]:
    # Held connections send nothing, and stay open as long as an engine takes to restart.
    settings = {"GENAI_DEVICE": "scripted", "GENAI_MAX_RESTARTS": "1", "GENAI_IDLE_TIMEOUT": "600"}
    # With a value of its own no process is forked, which would take other files than starting one does.
    settings["PYTHONPATH"] = str(ROOT / "src")
    with run_server(own_folder, settings=settings) as server:
        server.client.close()  # it keeps a connection open
        psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE, (FILES, FILES))
        server.client = type(server.client)(base_url=server.url, timeout=PATIENCE, headers={"connection": "close"})
        yield server


def post(content: str) -> bytes:
    sent = json.dumps(body(content)).encode()
    head = b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(sent) + sent


def test_each_of_150_connections_at_once_has_an_answer_or_a_503(tight: RunningServer) -> None:
    found: list[RawAnswer] = []

    def ask() -> None:
        with connect(tight) as sock:
            everybody.wait()
            sock.sendall(post("say x"))
            found.extend(answers(read_to_end(sock)))

    everybody = threading.Barrier(150)
    threads = [threading.Thread(target=ask) for _ in range(150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = Counter(answer.status for answer in found)
    assert statuses.keys() == {200, 503}
    assert statuses.total() == 150
    assert statuses[200] >= 20
    for answer in found:
        if answer.status == 503:
            error = json.loads(answer.body)["error"]
            assert error["code"] == "too_many_connections"
            assert f"({FILES})" in error["message"]
            assert answer.headers["retry-after"] == ["1"]
            assert answer.headers["connection"] == ["close"]
    assert tight.chat("say y").json()["content"] == "y"


def fill(server: RunningServer, held: ExitStack) -> None:
    """Open connections that send nothing, until one is refused."""
    for _ in range(FILES):
        sock: socket.socket = held.enter_context(connect(server))
        sock.setblocking(False)
        try:
            if sock.recv(1):
                return
        except BlockingIOError:
            continue


@pytest.mark.slow
def test_dead_engine_is_restarted_while_files_are_exhausted(tight: RunningServer) -> None:
    pid = tight.device("scripted")["pid"]

    def is_back() -> bool:
        health = tight.client.get("/healthz")  # a 503 if even this connection is one too many
        device = health.json()["devices"]["scripted"] if health.status_code == 200 else {}
        return device.get("state") == "ready" and device["pid"] != pid

    def is_refused() -> bool:
        # Until the API process is connected to the new engine, a connection may have the file of the old engine's.
        answer = tight.chat("say x").json()
        if "error" not in answer:
            # The server may have had another file for a moment when the first connection was refused.
            fill(tight, held)
            return False
        return bool(answer["error"]["code"] == "too_many_connections")

    with ExitStack() as held:
        fill(tight, held)
        os.kill(pid, signal.SIGKILL)
        wait_until(is_back)
        wait_until(is_refused)
    wait_until(lambda: tight.chat("say x").status_code == 200)
    assert tight.device("scripted")["restarts"] == 1
