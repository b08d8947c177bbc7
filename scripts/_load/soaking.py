"""A server under full load in four parts, and the resources that its processes hold when idle between them.

The parts are a warm-up, which fills caches and starts threads; a part in which engines are killed; a second warm-up,
for the new engine; and a part without kills. Memory is compared when idle, because it then does not depend on running
requests.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .answers import WrongAnswer, read_answer
from .asked import ON_DEMAND, full_length
from .clients import ADMIN, DEATHS, STOPPING, Books, Clients, ask_references
from .footprint import Footprint, footprint, together
from .http import BrokenAnswer, ask_json
from .pulse import Pulse
from .server import Server

QUESTIONS = 60
# More than are run at once, so that there is always a queue.
CLIENTS = 24
SECONDS_TO_REST = 60.0
# For closed connections to be seen by both sides, and for the API process to collect its garbage, which it does by the
# clock (src/genai_server/system/resources.py). A shorter soak allows so much growth that it need not wait.
_SECONDS_TO_TIDY_UP = 12.0
# An engine gives free memory back after two seconds without work.
_SECONDS_FOR_AN_ENGINE = 4.0
_MAX_SECONDS_PER_PROFILING = 5.0
# An engine that is killed before it counts as recovered is restarted later each time, and some day no more.
_SECONDS_TO_RECOVER = 75.0
_FEW_KILLS = 3
# So many requests reach every API process.
_VISITS = 8
_SECONDS_UNDER_LOAD = 3.0
# The time to drain, and what the processes need to end.
DRAIN_SECONDS = 10
_LONGEST_STOP = DRAIN_SECONDS + 10.0


@dataclass(frozen=True)
class Plan:
    """Seconds of the parts with kills and without, and of what depends on the first."""

    with_kills: float
    without_kills: float

    @property
    def warm_up(self) -> float:
        """For the warm-up."""
        return min(90.0, max(3.0, self.with_kills / 5))

    @property
    def tidy_up(self) -> float:
        """Until the API process is measured."""
        return min(_SECONDS_TO_TIDY_UP, max(_SECONDS_FOR_AN_ENGINE, self.with_kills / 5))

    @property
    def between_kills(self) -> float:
        """A fifteenth of the time, but no crash loop: in a short time a few only."""
        return max(self.with_kills / 15, min(self.with_kills / _FEW_KILLS, _SECONDS_TO_RECOVER))


@dataclass
class Found:
    """What the soak has seen: `api` and `engine` when idle, after their warm-up and at the end."""

    books: Books = field(default_factory=Books)
    api: tuple[Footprint, ...] = ()
    engine: tuple[Footprint, ...] = ()
    kills: int = 0
    switches: int = 0
    seconds: float = 0.0
    slowest_pulse: float = 0.0
    # From SIGTERM under load until the last process has ended.
    seconds_to_stop: float = 0.0


class Soak:
    """One run over a server whose first model has one engine, whose /healthz `pulse` asks, and whose profiles go to
    `profiles`.
    """

    def __init__(self, server: Server, profiles: Path, plan: Plan, seed: int, pulse: Pulse) -> None:
        self.found = Found()
        self._server = server
        self._pulse = pulse
        self._profiles = profiles
        self._plan = plan
        self._chance = random.Random(seed)

    async def run(self) -> Found:
        """All parts. Raises WrongAnswer if the questions are not even answered alone, TimeoutError if the server does
        not come to rest.
        """
        started = time.monotonic()
        references = await ask_references(self._server.port, range(QUESTIONS))
        clients = Clients(self._server.port, references, self.found.books, self._chance)
        await self._warm_up(clients)
        api, _ = await self._at_rest(self._plan.tidy_up)
        clients.excused = DEATHS
        await self._part(clients, self._plan.with_kills, self._kill_engines)
        await self._rest()
        clients.excused = ()
        await self._warm_up(clients)
        _, engine = await self._at_rest(_SECONDS_FOR_AN_ENGINE)
        await self._part(clients, self._plan.without_kills)
        api_at_the_end, engine_at_the_end = await self._at_rest(self._plan.tidy_up)
        self.found.api, self.found.engine = (api, api_at_the_end), (engine, engine_at_the_end)
        await asyncio.to_thread(self._pulse.look)
        self.found.slowest_pulse = self._pulse.slowest()
        await self._stop_under_load(clients)
        self.found.seconds = time.monotonic() - started
        return self.found

    async def _stop_under_load(self, clients: Clients) -> None:
        """Send SIGTERM while all clients ask, and wait until every process of the server has ended."""
        server = psutil.Process(self._server.pid)
        clients.excused, clients.is_stopping = STOPPING, True
        asking = [asyncio.create_task(clients.keep_asking(lambda: not server.is_running())) for _ in range(CLIENTS)]
        await asyncio.sleep(_SECONDS_UNDER_LOAD)
        processes = [server, *server.children(recursive=True)]
        started = time.monotonic()
        server.terminate()
        _, alive = await asyncio.to_thread(psutil.wait_procs, processes, _LONGEST_STOP)
        self.found.seconds_to_stop = time.monotonic() - started
        if alive:
            self.found.books.accuse("the server stops within its drain time", f"after {_LONGEST_STOP} s: {alive}")
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _warm_up(self, clients: Clients) -> None:
        """Fill what fills up: each slot to its whole length, caches, thread pools, and what API processes keep of each
        model.

        An engine that has just started has touched little of the memory for keys and values. Without full slots, the
        memory that is compared would depend on how many requests it has answered. Raises WrongAnswer if a slot is not
        filled.
        """
        for model in ON_DEMAND:
            await asyncio.gather(*(clients.visit(model) for _ in range(_VISITS)))
        answers = await asyncio.gather(
            *(ask_json(self._server.port, "/v1/chat", full_length(index)) for index in range(CLIENTS))
        )
        for answer in answers:
            if (ended := read_answer(answer.status, bytes(answer.body), streamed=False)).reason != "length":
                raise WrongAnswer(f"a prompt and an answer of the whole length: {ended}")
        await self._part(clients, self._plan.warm_up)

    async def _part(self, clients: Clients, seconds: float, *more: Callable[[], Coroutine[None, None, None]]) -> None:
        """All clients and other activities for a duration; then the clients only wait for their answers."""
        end = time.monotonic() + seconds
        others = [asyncio.create_task(work()) for work in (self._switch_profiling, *more)]
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(clients.keep_asking(lambda: time.monotonic() > end))
            await asyncio.sleep(seconds)
            for task in others:
                task.cancel()
        ended = await asyncio.gather(*others, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _rest(self) -> None:
        """Wait until nothing runs or waits, as everybody has had an answer or has left."""
        async with asyncio.timeout(SECONDS_TO_REST):
            while not await asyncio.to_thread(self._server.is_idle):  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.2)

    async def _at_rest(self, seconds: float) -> tuple[Footprint, Footprint]:
        """What all API processes together, and the engine, hold when nothing has been asked for so long."""
        with suppress(TimeoutError):
            await self._rest()
        if not await asyncio.to_thread(self._server.is_idle):
            self.found.books.accuse("slots balance", f"when idle: {await asyncio.to_thread(self._server.health)}")
        await asyncio.sleep(seconds)
        api = together([footprint(pid) for pid in self._server.api_pids()])
        engine_pid = await asyncio.to_thread(self._server.engine_pid)
        return api, footprint(engine_pid or 0)

    async def _kill_engines(self) -> None:
        while True:
            await asyncio.sleep(self._plan.between_kills)
            pid = await asyncio.to_thread(self._server.engine_pid)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                self.found.kills += 1

    async def _switch_profiling(self) -> None:
        """Switch profiling on and off for the device, and remove the files, so that profiling never reaches a limit."""
        # In a short time it is on and off several times, too.
        longest = min(_MAX_SECONDS_PER_PROFILING, self._plan.with_kills / 5)
        while True:
            for value in ("1", "0", "soak", "0"):
                await asyncio.sleep(longest * self._chance.random())
                with suppress(BrokenAnswer, OSError):
                    answer = await ask_json(self._server.port, ADMIN, {"enable_profiling": value})
                    self.found.switches += answer.status == 200
            for folder in self._profiles.glob("*"):
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
