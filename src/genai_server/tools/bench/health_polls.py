"""Probes /healthz all the time, to see whether a server stays responsive under load."""

import asyncio
import time
from types import TracebackType

import aiohttp

from genai_server.tools.bench.bench_client import open_http

# More unanswered probes would themselves be a load.
_MAX_UNANSWERED = 100
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


class HealthProbe:
    """Sends a GET every `interval` seconds while entered, even if earlier ones are still unanswered.

    `samples` holds the times of all answers in seconds; `failed` counts failed probes.
    """

    def __init__(self, url: str, path: str, interval: float) -> None:
        self.samples: list[float] = []
        self.failed = 0
        self._url = url + path
        self._interval = interval
        self._taken = 0
        self._task: asyncio.Task[None] | None = None
        self._unanswered: set[asyncio.Task[None]] = set()
        # Separate connections, so that measured requests never wait for one.
        self._http = open_http()

    async def answers(self) -> bool:
        """Whether the server has such a path."""
        try:
            async with self._http.get(self._url) as response:
                return response.status == 200
        except _FAILURES:
            return False

    def take(self) -> list[float]:
        """The times since the last call, in seconds."""
        start, self._taken = self._taken, len(self.samples)
        return self.samples[start:]

    async def __aenter__(self) -> "HealthProbe":
        self._task = asyncio.create_task(self._probe_on_time())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        except _FAILURES:
            self.failed += 1
        else:
            self.samples.append(time.perf_counter() - start)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
