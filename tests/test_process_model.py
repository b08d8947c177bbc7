"""Each way of starting a server: every process is killed and suspended in turn, and nothing is left at the end.

A table in docs/architecture.md describes the processes.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.running_server import (
    ROOT,
    body,
    clean_environment,
    command_line,
    free_port,
    has_ended,
    running_after,
    suspended,
    wait_until,
)

# Longer than a replaced process takes to start on a busy machine.
SECONDS = 120.0
# How often four workers are started next to processes that never wait.
START_ROUNDS = int(os.environ.get("START_ROUNDS", "0"))
BUSY_PROCESSES = 6


class Processes:
    """A server with a scripted engine, and its processes by what they are."""

    def __init__(self, first: int, url: str) -> None:
        self.first = psutil.Process(first)
        self.url = url

    def all(self) -> list[psutil.Process]:
        """All processes now: those of an ended parent, too, if their engine answers."""
        found = {self.first, *self.first.children(recursive=True)}
        engine = psutil.Process(self.engine_id())
        found |= {engine, *engine.parents()} - {*self.first.parents(), psutil.Process(1)}
        return sorted((process for process in found if not has_ended(process)), key=lambda process: process.pid)

    def engines(self) -> list[psutil.Process]:
        """The engine."""
        return [psutil.Process(self.engine_id())]

    def supervisors(self) -> list[psutil.Process]:
        """The supervisor."""
        return [found for found in self.all() if "genai_server.supervisor.process" in command_line(found)]

    def workers(self) -> list[psutil.Process]:
        """One of several API processes."""
        return [found for found in self.all() if is_worker(found)][:1]

    def engine_id(self) -> int:
        """The process id of the ready engine."""
        wait_until(self.is_ready, SECONDS)
        devices = httpx.get(f"{self.url}/healthz", timeout=SECONDS).json()["devices"]
        return int(devices["scripted"]["pid"])

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    def answers(self) -> None:
        """Wait until the server answers four times in turn: each worker may lose one with a process that dies."""
        wait_until(lambda: all(self._answers() for _ in range(4)), SECONDS)

    def _answers(self) -> bool:
        try:
            if not self.is_ready():
                return False
            answer = httpx.post(f"{self.url}/v1/chat", json=body("say hi"), timeout=SECONDS)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json().get("content") == "hi"


@contextmanager
def started_by(command: Sequence[str], *, folder: Path, temporary: Path) -> Iterator[Processes]:
    """A server that this command line of Python starts; `PORT` stands for a free port."""
    port = str(free_port())
    line = [sys.executable, *(part.replace("PORT", port) for part in command)]
    environment = clean_environment(GENAI_DEVICE="scripted", TMPDIR=str(temporary))
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        found = Processes(process.pid, f"http://127.0.0.1:{port}")
        wait_until(found.is_ready, SECONDS)
        yield found
    finally:
        process.terminate()
        process.wait(SECONDS)


def is_worker(process: psutil.Process) -> bool:
    """Whether it is one of several API processes."""
    line, parent = " ".join(command_line(process)), process.parent()
    is_forked = "gunicorn" in line and parent is not None and "gunicorn" in " ".join(command_line(parent))
    return is_forked or "multiprocessing.spawn" in line


SERVE = ["-m", "genai_server", "serve", "--port", "PORT"]
UVICORN = ["-m", "uvicorn", "genai_server.asgi:app", "--port", "PORT"]
PATIENT = ["--timeout-worker-healthcheck", "120"]
# What people write to start an app with settings of their own.
SCRIPT = """import uvicorn
if __name__ == "__main__":
    uvicorn.run("genai_server.asgi:app", port=PORT, reload=False, workers=2, timeout_worker_healthcheck=120)
"""
GUNICORN = ["-m", "gunicorn", "genai_server.asgi:app", "--bind", "127.0.0.1:PORT", "--workers", "2", "--timeout", "120"]
ONE = [Processes.engines, Processes.supervisors]
SEVERAL = [*ONE, Processes.workers]
WAYS = {
    "serve": (SERVE, ONE),
    "serve --workers 2": ([*SERVE, "--workers", "2"], SEVERAL),
    "serve --reload": ([*SERVE, "--reload"], ONE),
    "uvicorn": (UVICORN, ONE),
    "uvicorn --reload": ([*UVICORN, "--reload", "--reload-dir", "models"], ONE),
    "uvicorn --workers 2": ([*UVICORN, *PATIENT, "--workers", "2"], SEVERAL),
    "uvicorn.run": (["-c", SCRIPT], SEVERAL),
    "gunicorn": ([*GUNICORN, "--worker-class", "uvicorn_worker.UvicornWorker"], SEVERAL),
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows can neither suspend processes nor end them gracefully")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_each_process_may_die_and_nothing_is_left(way: str, own_folder: Path, short_folder: Path) -> None:
    command, mortal = WAYS[way]
    seen: set[psutil.Process] = set()
    with started_by(command, folder=own_folder, temporary=short_folder) as server:
        for find in mortal:
            found = find(server)
            assert found, [command_line(process) for process in server.all()]
            for process in found:
                seen |= set(server.all())
                with suspended(process):
                    pass  # for a moment that nothing should notice
                server.answers()
                assert process.is_running()
                process.kill()
                wait_until(lambda: has_ended(process), SECONDS)  # noqa: B023
                server.answers()
        seen |= set(server.all())
        server.first.send_signal(signal.SIGTERM)
        wait_until(lambda: has_ended(server.first), SECONDS)
    assert running_after(seen, SECONDS) == []
    wait_until(lambda: list(short_folder.glob("genai-server-*")) == [], SECONDS)


@contextmanager
def busy_machine() -> Iterator[None]:
    """Processes that never wait, while the block runs."""
    with ExitStack() as processes:
        for _ in range(BUSY_PROCESSES):
            busy = processes.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            processes.callback(busy.kill)
        yield


@pytest.mark.slow
@pytest.mark.skipif(not START_ROUNDS, reason="takes ten seconds a start: START_ROUNDS=100 for a hundred")
@pytest.mark.timeout(SECONDS * max(1, START_ROUNDS))
def test_no_worker_is_killed_while_it_starts_on_a_busy_machine(own_folder: Path, short_folder: Path) -> None:
    with busy_machine():
        for _ in range(START_ROUNDS):
            with started_by([*UVICORN, "--workers", "4"], folder=own_folder, temporary=short_folder) as server:
                server.answers()
                # uvicorn's parent kills and replaces a worker that has not responded for five seconds.
                assert "died" not in (own_folder / "server.log").read_text()
