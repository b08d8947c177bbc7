"""Each way of starting a server: every process is killed and suspended in turn, and nothing is left at the end.

A table in docs/architecture.md describes the processes.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.running_server import body, has_ended, run_server, running_after, serve_with_uvicorn, suspended, wait_until

# Longer than a replaced process takes to start on a busy machine.
SECONDS = 120.0


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
        """The supervisor, if it is a process of its own."""
        return [found for found in self.all() if "genai_server.supervisor.process" in found.cmdline()]

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
def served(*options: str, folder: Path, temporary: Path) -> Iterator[Processes]:
    with run_server(folder, "--device", "scripted", *options, settings={"TMPDIR": str(temporary)}) as server:
        yield Processes(server.process.pid, server.url)


@contextmanager
def under_uvicorn(*options: str, folder: Path, temporary: Path) -> Iterator[Processes]:
    patient = ["--timeout-worker-healthcheck", "120"]
    with serve_with_uvicorn(folder, *options, *patient, GENAI_DEVICE="scripted", TMPDIR=str(temporary)) as (
        process,
        url,
        _,
    ):
        found = Processes(process.pid, url)
        wait_until(found.is_ready, SECONDS)
        yield found


def is_worker(process: psutil.Process) -> bool:
    """Whether it is one of several API processes."""
    parent = process.parent()
    line, before = " ".join(process.cmdline()), "" if parent is None else " ".join(parent.cmdline())
    # Those of `serve` are forked from a process that has imported everything.
    return "multiprocessing.spawn" in line or ("multiprocessing.forkserver" in line and "forkserver" in before)


WAYS = {
    "serve": (served, [], [Processes.engines]),
    "serve --workers 2": (served, ["--workers", "2"], [Processes.engines, Processes.workers]),
    "serve --reload": (served, ["--reload"], [Processes.engines]),
    "uvicorn": (under_uvicorn, [], [Processes.engines, Processes.supervisors]),
    "uvicorn --workers 2": (
        under_uvicorn,
        ["--workers", "2"],
        [Processes.engines, Processes.supervisors, Processes.workers],
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows can neither suspend processes nor end them gracefully")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_each_process_may_die_and_nothing_is_left(way: str, own_folder: Path, short_folder: Path) -> None:
    start, options, mortal = WAYS[way]
    seen: set[psutil.Process] = set()
    with start(*options, folder=own_folder, temporary=short_folder) as server:
        for find in mortal:
            found = find(server)
            assert found, [process.cmdline() for process in server.all()]
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
