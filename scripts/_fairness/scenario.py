"""One attack of a key on another one: what is measured, alone and attacked in turns, and what is allowed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles

from _load.http import ask

from .clients import ADMIN, ATTACKER, VICTIM, Client, Refused

# How many times slower the requests of the key that behaves may become, besides one pass or task.
RATIO = 3.0
# Seconds that an attack has before the first attacked request, and within which what it has left must end.
_SETTLE, _CALM = 2.0, 120.0
_BUCKET = re.compile(r'^genai:(?:prefill|decode)_step_time_seconds_bucket\{.*le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A running server and the holders of its keys."""

    port: int
    attacker: Client
    victim: Client
    operator: Client

    @classmethod
    def at(cls, port: int) -> Place:
        """The server at this port."""
        return cls(port, Client(port, ATTACKER), Client(port, VICTIM), Client(port, ADMIN))

    async def passes(self) -> dict[float, float]:
        """The numbers of forward passes up to now that took at most these seconds."""
        response = await ask(self.port, "GET", "/metrics", headers=self.operator.headers())
        found: dict[float, float] = {}
        for limit, number in _BUCKET.findall(response.body.decode()):
            found[float(limit)] = found.get(float(limit), 0.0) + float(number)
        return found

    async def until(self, condition: Callable[[Mapping[str, str]], bool], *, every: float = 0.1) -> None:
        """Wait until a condition holds for the phases of all requests, by their ids."""
        async with asyncio.timeout(_CALM):
            while True:
                # While no model is loaded there is no list.
                data = (await self.operator.get("/v1/requests")).json().get("data", [])
                if condition({entry["id"]: entry["phase"] for entry in data}):
                    return
                await asyncio.sleep(every)


@dataclass(frozen=True)
class Effort:
    """How often is measured."""

    rounds: int
    # In each block of a round.
    requests: int


@dataclass(frozen=True)
class Scenario:
    """An attack on what one request of the key that behaves takes.

    `request` returns its seconds and raises Refused. The attack runs while the context is open. `allowance` gives the
    seconds that are allowed besides RATIO times those alone; without one, those of a pass.
    """

    name: str
    request: Callable[[Place], Awaitable[float]]
    attack: Callable[[Place], AbstractAsyncContextManager[object]]
    allowance: Callable[[Place], Awaitable[float]] | None = None


@dataclass
class Row:
    """What was measured of a scenario, in seconds."""

    name: str
    alone: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    # How refused requests ended.
    refused: list[str] = field(default_factory=list)
    allowance: float = 0.0
    ratio: float = RATIO

    @property
    def allowed(self) -> float:
        """The highest 95th percentile that an attack may cause."""
        return self.ratio * percentile(self.alone, 95) + self.allowance

    @property
    def is_fair(self) -> bool:
        """Whether no request was refused, and none took too long."""
        return not self.refused and bool(self.attacked) and percentile(self.attacked, 95) <= self.allowed

    def cells(self) -> list[str]:
        """The row of the table, in milliseconds."""
        figures = [percentile(values, rank) for values in (self.alone, self.attacked) for rank in (50, 95)]
        shown = [f"{1000 * figure:.0f}" for figure in (*figures, self.allowed)]
        return [self.name, *shown, f"{len(self.refused)}", "fair" if self.is_fair else "UNFAIR"]


HEAD = ["attack", "alone p50 ms", "p95", "attacked p50", "p95", "allowed p95", "refused", "verdict"]


@dataclass(frozen=True)
class Family:
    """Scenarios that one server is started for.

    `settings` are its environment variables, besides the model and the keys; they may name files in the folder.
    `measure` has rows that are no scenarios.
    """

    name: str
    scenarios: Sequence[Scenario] = ()
    settings: Callable[[Path, Path], Mapping[str, str]] = lambda folder, model: {}
    measure: Callable[[Place, Effort], Awaitable[list[Row]]] | None = None


async def run(scenario: Scenario, place: Place, effort: Effort) -> Row:
    """Measure alone and attacked, in turns."""
    row = Row(scenario.name)
    await _ask(scenario, place, [], [])  # the first request of a kind prepares more than others
    before: dict[float, float] = {}
    number: dict[float, float] = {}
    for _ in range(effort.rounds):
        for _ in range(effort.requests):
            await _ask(scenario, place, row.alone, row.refused)
        before = await place.passes()
        with _attacking(scenario, place):
            await asyncio.sleep(_SETTLE)
            for _ in range(effort.requests):
                await _ask(scenario, place, row.attacked, row.refused)
            after = await _settled(place, before)
            for limit, value in after.items():
                number[limit] = number.get(limit, 0.0) + value - before.get(limit, 0.0)
        await place.until(lambda requests: not requests)
    row.allowance = longest_pass(number) if scenario.allowance is None else await scenario.allowance(place)
    return row


@contextmanager
def _attacking(scenario: Scenario, place: Place) -> Iterator[None]:
    """An attack from a process of its own, which takes what processor time the server and the measurement leave: the
    clients of an attacker run on other machines.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_attack, args=(scenario, place, there), daemon=True)
    process.start()
    try:
        if not here.poll(_CALM) or here.recv() is not None:
            raise RuntimeError(f"the attack {scenario.name} does not begin")
        yield
    finally:
        here.send(None)
        process.join(_SETTLE)
        process.kill()
        process.join()


def _attack(scenario: Scenario, place: Place, parent: Connection) -> None:
    async def attack() -> None:
        async with scenario.attack(place):
            parent.send(None)
            await asyncio.to_thread(parent.recv)

    os.nice(19)
    asyncio.run(attack())


async def _ask(scenario: Scenario, place: Place, into: list[float], refused: list[str]) -> None:
    try:
        into.append(await scenario.request(place))
    except Refused as error:
        refused.append(str(error))


async def _settled(place: Place, before: Mapping[float, float]) -> dict[float, float]:
    """The passes once the engine, which reports once a second, has reported those of the attack."""
    for _ in range(20):
        if (found := await place.passes()) != before:
            break
        await asyncio.sleep(0.2)
    return found


def longest_pass(number: Mapping[float, float]) -> float:
    """The 95th percentile of forward passes, by the cumulative numbers of a histogram's buckets."""
    limits = sorted(number)
    if not limits or not number[limits[-1]]:
        return 0.0
    rank, low = 0.95 * number[limits[-1]], 0.0
    for limit in limits:
        if number[limit] >= rank:
            return low if limit == float("inf") else limit
        low = limit
    return low


def percentile(values: Sequence[float], rank: int) -> float:
    """A percentile; infinite without values."""
    if len(values) < 2:
        return values[0] if values else float("inf")
    return quantiles(values, n=100, method="inclusive")[rank - 1]
