"""Sends attempts to a server of scripted engines, and checks its promises: no 500, no hang, no growth, and /healthz
always answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from .attempts import Attempt, attempt
from .clients import ADMIN
from .floods import Place, places
from .footprint import Footprint, footprint, together
from .http import BrokenAnswer, Exchange, Response, ask_json
from .pulse import Pulse
from .server import HOST, Server
from .stored import Stored

LONGEST_SECONDS = 1.0
LONGEST_PULSE = 0.25
_MAX_SUSPECTS = 200
_GIVEN_UP_SECONDS = 20.0
# An attempt that was slow only because the machine was busy is not slow each time.
_TRIES = 3
_CLIENTS = 4
SAMPLES = 100


@dataclass
class Findings:
    """The results of the attempts: how many had which status (0: disconnected), and which broke a promise."""

    statuses: Counter[int] = field(default_factory=Counter)
    by_path: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)
    api: list[Footprint] = field(default_factory=list)
    # Memory of all engines together.
    engines: list[Footprint] = field(default_factory=list)
    restarts: int = 0
    slowest_pulse: float = 0.0
    slow_pulses: int = 0


@dataclass(frozen=True)
class Targets:
    """All POST endpoints of a server by their paths, and the places of their bodies that may be flooded."""

    paths: Sequence[str]
    places: Mapping[str, Sequence[Place]]


def targets(server: Server) -> Targets:
    """All endpoints and places in the server's OpenAPI description."""
    description: dict[str, Any] = httpx.get(f"http://{HOST}:{server.port}/openapi.json", timeout=10).json()
    paths = sorted(path for path, methods in description["paths"].items() if "post" in methods)
    return Targets(paths, places(description))


class Fuzzer:
    """One run with one seed."""

    def __init__(self, server: Server, seed: int, asked: Targets, pulse: Pulse) -> None:
        self.found = Findings()
        self._server = server
        self._seed = seed
        self._asked = asked
        self._pulse = pulse
        self._stored = Stored(server.port)
        self._sampled = 1
        # When each attempt was under way, by `time.monotonic`.
        self._times: list[tuple[float, float, int]] = []

    async def run(self, numbers: range) -> Findings:
        """Run the attempts with these numbers; the footprint of the processes is recorded a hundred times."""
        self._sampled = max(1, len(numbers) // SAMPLES)
        waiting = iter(numbers)
        async with asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(self._work(waiting))
        await self._find_what_holds_up()
        engines = await asyncio.to_thread(self._server.engines)
        self.found.restarts = sum(engine["restarts"] for engine in engines)
        return self.found

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            made = self._attempt(number)
            started = time.monotonic()
            self.found.by_path[made.path] += 1
            if number % self._sampled == 0:
                await self._measure()
            seconds, complaint = await self._try(made)
            tries = 1
            while seconds > LONGEST_SECONDS and complaint is None and tries < _TRIES:
                seconds, complaint = await self._try(made)
                tries += 1
            self._times.append((started, time.monotonic(), number))
            self.found.slowest = max(self.found.slowest, seconds)
            if seconds > LONGEST_SECONDS:
                complaint = complaint or f"takes {seconds:.1f} s each time"
            if complaint is not None:
                self.found.failures.append((number, complaint))
            if "admin" in made.path:
                await ask_json(self._server.port, ADMIN, {"terminate_session": "0", "enable_profiling": "0"})

    def _attempt(self, number: int) -> Attempt:
        return attempt(self._seed, number, self._asked.paths, self._asked.places)

    async def _find_what_holds_up(self) -> None:
        """Repeat each attempt that was under way while /healthz did not answer, alone: a culprit always delays it."""
        await asyncio.to_thread(self._pulse.look)
        self.found.slowest_pulse = self._pulse.slowest()
        slow = [beat for beat in self._pulse.beats if beat[1] - beat[0] > LONGEST_PULSE]
        self.found.slow_pulses = len(slow)
        suspects = [
            number for began, ended, number in self._times if any(start < ended and began < end for start, end in slow)
        ]
        for number in suspects[:_MAX_SUSPECTS]:
            fastest = await self._pulse_during(self._attempt(number))
            if fastest > LONGEST_PULSE:
                self.found.failures.append((number, f"/healthz takes {fastest:.2f} s during it each time"))
        if len(suspects) > _MAX_SUSPECTS:
            self.found.failures.append((suspects[_MAX_SUSPECTS], f"{len(suspects)} were under way during slow answers"))

    async def _pulse_during(self, made: Attempt) -> float:
        """The slowest answer of /healthz during an attempt, in the try in which it was fastest."""
        fastest = float("inf")
        for _ in range(_TRIES):
            started = time.monotonic()
            await self._try(made)
            await asyncio.to_thread(self._pulse.look)
            fastest = min(fastest, self._pulse.slowest(started))
            if fastest <= LONGEST_PULSE:
                break
        return fastest

    async def _try(self, made: Attempt) -> tuple[float, str | None]:
        """Seconds until the end, and what is wrong with the answer."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_GIVEN_UP_SECONDS):
                filled = replace(made, data=await self._stored.fill(made.data))
                response = await send(self._server.port, filled)
        except TimeoutError:
            return time.perf_counter() - started, f"no answer within {_GIVEN_UP_SECONDS:.0f} s"
        except (BrokenAnswer, OSError) as error:
            self.found.statuses[0] += 1
            complaint = f"no complete answer: {type(error).__name__} {error}" if made.is_whole else None
            return time.perf_counter() - started, complaint
        self.found.statuses[response.status] += 1
        return time.perf_counter() - started, complaint_about(response)

    async def _measure(self) -> None:
        engines = await asyncio.to_thread(self._server.engines)
        # Otherwise one is being restarted, which counts as a failure at the end.
        if all(engine["state"] == "ready" for engine in engines):
            self.found.engines.append(together([footprint(engine["pid"]) for engine in engines]))
            self.found.api.append(together([footprint(pid) for pid in self._server.api_pids()]))


def complaint_about(response: Response) -> str | None:
    """The reason why an answer is unacceptable; None if it is not."""
    if response.status >= 500 and response.status != 503:
        return f"status {response.status}: {bytes(response.body[:300])!r}"
    if b"internal error" in response.body:
        return f"an internal error in a stream: {bytes(response.body[-300:])!r}"
    has_reason = any(form in response.body for form in (b'"message":', b'{"error":"', b"Invalid HTTP"))
    if response.status >= 400 and not has_reason:
        return f"status {response.status} without a reason: {bytes(response.body[:300])!r}"
    return None


async def send(port: int, made: Attempt) -> Response:
    """Send it and read the complete answer; an incomplete request may get none. Raises BrokenAnswer."""
    async with Exchange(port) as exchange:
        await exchange.send_raw(made.data, is_whole=made.is_whole)
        response = await exchange.response()
        async for piece in exchange.pieces():
            response.body += piece
        await exchange.closed()
    return response
