"""Sends attempts to a server of scripted engines, and holds it to its promises: no 500, no hang, no growth."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx

from .attempts import Attempt, attempt
from .clients import ADMIN
from .footprint import Footprint, footprint
from .http import BrokenAnswer, Exchange, Response, ask_json
from .server import HOST, Server

LONGEST_SECONDS = 1.0
_GIVEN_UP_SECONDS = 20.0
# What was slow because the machine was busy with something else is not slow each time.
_TRIES = 3
_CLIENTS = 4
SAMPLES = 100


@dataclass
class Findings:
    """What came of the attempts: how many with which status (0: hung up), and what broke a promise."""

    statuses: Counter[int] = field(default_factory=Counter)
    by_path: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)
    api: list[Footprint] = field(default_factory=list)
    engine: list[Footprint] = field(default_factory=list)
    restarts: int = 0


def post_paths(server: Server) -> list[str]:
    """All that the server's own description has."""
    paths = httpx.get(f"http://{HOST}:{server.port}/openapi.json", timeout=10).json()["paths"]
    return sorted(path for path, methods in paths.items() if "post" in methods)


class Fuzzer:
    """One run with one seed."""

    def __init__(self, server: Server, seed: int, paths: Sequence[str]) -> None:
        self.found = Findings()
        self._server = server
        self._seed = seed
        self._paths = paths
        self._sampled = 1

    async def run(self, numbers: range) -> Findings:
        """The attempts of these numbers; what the processes hold is noted a hundred times on the way."""
        self._sampled = max(1, len(numbers) // SAMPLES)
        waiting = iter(numbers)
        async with asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(self._work(waiting))
        devices = await asyncio.to_thread(self._server.health)
        self.found.restarts = sum(device["restarts"] for device in devices.values())
        return self.found

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            made = attempt(self._seed, number, self._paths)
            self.found.by_path[made.path] += 1
            if number % self._sampled == 0:
                await self._measure()
            seconds, complaint = await self._try(made)
            tries = 1
            while seconds > LONGEST_SECONDS and complaint is None and tries < _TRIES:
                seconds, complaint = await self._try(made)
                tries += 1
            self.found.slowest = max(self.found.slowest, seconds)
            if seconds > LONGEST_SECONDS:
                complaint = complaint or f"takes {seconds:.1f} s each time"
            if complaint is not None:
                self.found.failures.append((number, complaint))
            if "admin" in made.path:
                await ask_json(self._server.port, ADMIN, {"terminate_session": "0", "enable_profiling": "0"})

    async def _try(self, made: Attempt) -> tuple[float, str | None]:
        """Seconds until the end, and what is wrong with the answer."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_GIVEN_UP_SECONDS):
                response = await send(self._server.port, made)
        except TimeoutError:
            return time.perf_counter() - started, f"no answer within {_GIVEN_UP_SECONDS:.0f} s"
        except (BrokenAnswer, OSError) as error:
            self.found.statuses[0] += 1
            complaint = f"no whole answer: {type(error).__name__} {error}" if made.is_whole else None
            return time.perf_counter() - started, complaint
        self.found.statuses[response.status] += 1
        return time.perf_counter() - started, complaint_about(response)

    async def _measure(self) -> None:
        engine = await asyncio.to_thread(self._server.engine_pid)
        if engine is not None:  # else it is just being restarted, which counts as a failure at the end
            self.found.engine.append(footprint(engine))
            self.found.api.append(footprint(self._server.pid))


def complaint_about(response: Response) -> str | None:
    """What an answer says that no answer should."""
    if response.status >= 500 and response.status != 503:
        return f"status {response.status}: {bytes(response.body[:300])!r}"
    if b"internal error" in response.body:
        return f"an internal error in a stream: {bytes(response.body[-300:])!r}"
    if response.status >= 400 and b'"message":' not in response.body and b"Invalid HTTP" not in response.body:
        return f"status {response.status} without a reason: {bytes(response.body[:300])!r}"
    return None


async def send(port: int, made: Attempt) -> Response:
    """Send it and read the whole answer; where the request is not whole, nothing more comes. Raises BrokenAnswer."""
    async with Exchange(port) as exchange:
        await exchange.send_raw(made.data, is_whole=made.is_whole)
        response = await exchange.response()
        async for piece in exchange.pieces():
            response.body += piece
        await exchange.closed()
    return response
