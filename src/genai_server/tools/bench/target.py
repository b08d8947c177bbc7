"""A target of a benchmark: a server, its health endpoint, and its processes if it runs on this machine."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import psutil

from genai_server.system.addresses import is_loopback
from genai_server.tools.bench.bench_client import FAILURES, Server, open_http
from genai_server.tools.bench.bench_prompts import Calibration

# More unanswered probes would themselves be a load.
_MAX_UNANSWERED = 100


class HealthProbe:
    """Sends a GET request every `interval` seconds within a context, even if earlier ones are still unanswered.

    `samples` holds the response times in seconds; `failed` counts failed requests.
    """

    def __init__(self, url: str, path: str, interval: float) -> None:
        self.samples: list[float] = []
        self.failed = 0
        self._url = url + path
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._unanswered: set[asyncio.Task[None]] = set()
        # Separate connections, so that measured requests never wait for one.
        self._http = open_http()

    async def answers(self) -> bool:
        """Whether the server answers requests to its health endpoint with status 200."""
        try:
            async with self._http.get(self._url) as response:
                return response.status == 200
        except FAILURES:
            return False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._probe_on_time())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        if kind is not None:
            for probe in self._unanswered:
                probe.cancel()
        # Otherwise wait for the open probes: a probe that is unanswered at the end is a slow one.
        await asyncio.gather(self._task, *self._unanswered, return_exceptions=True)

    async def _probe_on_time(self) -> None:
        while True:
            if len(self._unanswered) < _MAX_UNANSWERED:
                probe = asyncio.create_task(self._probe())
                self._unanswered.add(probe)
                probe.add_done_callback(self._unanswered.discard)
            await asyncio.sleep(self._interval)

    async def _probe(self) -> None:
        start = time.perf_counter()
        try:
            async with self._http.get(self._url, raise_for_status=True) as response:
                await response.read()
        except FAILURES:
            self.failed += 1
        else:
            self.samples.append(time.perf_counter() - start)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


@dataclass(frozen=True)
class Target:
    """One server of a benchmark: the client that sends the requests, how the server counts tokens, its health probe and
    its processes.

    All servers get the same prompts. If a server is named twice, its second target has another `copy` number and other
    prompts.
    """

    server: Server
    calibration: Calibration
    # None if the server has no health endpoint.
    health: HealthProbe | None
    copy: int = 0
    # Those that listen; engine processes are not among these. Empty if the server runs on another machine.
    processes: Sequence[psutil.Process] = ()

    def cpu_seconds(self) -> float | None:
        """Return the total CPU time of the server's processes so far; None if it is unknown or one of them has
        ended.
        """
        try:
            times = [process.cpu_times() for process in self.processes]
        except psutil.Error:
            return None
        return sum(each.user + each.system for each in times) if times else None


def server_processes(url: str) -> list[psutil.Process]:
    """Return the processes that listen at a URL; empty if they run on another machine or belong to another user."""
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or ""):
        return []
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        sockets = psutil.net_connections(kind="tcp")  # macOS allows this only for root
        listening = [each for each in sockets if each.status == psutil.CONN_LISTEN]
        pids = {each.pid for each in listening if each.pid is not None and each.laddr and each.laddr.port == port}
        return [psutil.Process(pid) for pid in pids]
    except psutil.Error:
        return []
