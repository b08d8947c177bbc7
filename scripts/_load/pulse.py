"""Polls a server's /healthz continuously, from a separate process, which nothing else delays."""

from __future__ import annotations

import http.client
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from .server import HOST

# Seconds within which /healthz must answer, whatever a server is asked.
LONGEST_PULSE = 0.25
_PAUSE = 0.02
_PATIENCE = 60.0


@dataclass
class Pulse:
    """When each answer was asked for and when it came, by `time.monotonic`, up to the last `look`."""

    beats: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0
    _watcher: Connection | None = None

    def look(self) -> None:
        """Take what has come since; waits for the answer to the question that is under way."""
        assert self._watcher is not None
        self._watcher.send(None)
        beats, self.failed = self._watcher.recv()
        self.beats += beats

    def slowest(self, since: float = 0.0) -> float:
        """Seconds of the slowest answer that has come after a time."""
        return max((end - start for start, end in self.beats if end >= since), default=0.0)


@contextmanager
def pulse(port: int) -> Iterator[Pulse]:
    """The pulse of the server at this port."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_watch, args=(port, there), daemon=True)
    process.start()
    try:
        here.recv()  # it has begun
        yield Pulse(_watcher=here)
    finally:
        process.kill()
        process.join()


def _watch(port: int, parent: Connection) -> None:
    beats: list[tuple[float, float]] = []
    failed = 0
    connection = http.client.HTTPConnection(HOST, port, timeout=_PATIENCE)
    parent.send(None)
    while True:
        start = time.monotonic()
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            failed += 1
            connection.close()
        beats.append((start, time.monotonic()))
        if parent.poll(_PAUSE):
            parent.recv()
            parent.send((beats, failed))
            beats = []
