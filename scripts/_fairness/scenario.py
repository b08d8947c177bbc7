"""One attack of a key on another one: what is measured, alone and attacked in turns, and what is allowed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from genai_server.tools.bench.measurement import percentile

from .clients import ADMIN, ATTACKER, VICTIM, Client, Refused, Tally

# How many times slower the requests of the key that behaves may become, besides one pass or task.
RATIO = 3.0
# Seconds within which an attack must begin, and what it has left must end.
_CALM = 120.0
# Seconds after which the process of an attack is killed.
_LEAVE = 2.0
_BUCKET = re.compile(r'^genai:prefill_step_time_seconds_bucket\{[^}]*\ble="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A running server and the holders of its keys."""

    attacker: Client
    victim: Client
    operator: Client
    # How the attacker's requests have ended, in the process that sends them.
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def at(cls, port: int) -> Place:
        """The server at this port."""
        return cls(Client(port, ATTACKER), Client(port, VICTIM), Client(port, ADMIN))

    async def passes(self) -> dict[float, float]:
        """The numbers of forward passes up to now that read prompts and took at most these seconds."""
        response = await self.operator.ask("/metrics", method="GET")
        found: dict[float, float] = {}
        for limit, number in _BUCKET.findall(response.body.decode()):
            found[float(limit)] = found.get(float(limit), 0.0) + float(number)
        return found

    async def idle(self) -> None:
        """Wait until no request runs or waits."""
        async with asyncio.timeout(_CALM):
            # While no model is loaded there is no list.
            while (await self.operator.ask("/v1/requests", method="GET")).json().get("data"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@dataclass(frozen=True)
class Effort:
    """How often is measured."""

    rounds: int
    # In each block of a round.
    requests: int
    # Seconds that an attack has before the first attacked request.
    settle: float = 2.0
    # Whether the times of requests are judged.
    is_timed: bool = True


Attack = Callable[[Place], AbstractAsyncContextManager[object]]


@dataclass(frozen=True)
class Scenario:
    """An attack on what one request of the key that behaves takes.

    `request` returns its seconds and raises Refused. The attack runs while the context is open. `allowance` gives the
    seconds that are allowed besides RATIO times those alone; without one, those of a pass. `order` says whether the
    attacker's requests are where they should be when the first attacked request has ended, however long that took.
    """

    name: str
    request: Callable[[Place], Awaitable[float]]
    attack: Attack
    allowance: Callable[[Place], Awaitable[float]] | None = None
    order: Callable[[Tally], bool] = lambda tally: True


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
    is_timed: bool = True
    # What was wrong with the order of requests.
    disorder: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> float:
        """The highest 95th percentile that an attack may cause."""
        return self.ratio * shown_percentile(self.alone, 95) + self.allowance

    @property
    def is_fair(self) -> bool:
        """Whether no request was refused, all came in their turns, and none took too long."""
        if self.refused or self.disorder or not self.attacked:
            return False
        return not self.is_timed or shown_percentile(self.attacked, 95) <= self.allowed

    def cells(self) -> list[str]:
        """The row of the table, in milliseconds."""
        figures = [shown_percentile(values, rank) for values in (self.alone, self.attacked) for rank in (50, 95)]
        shown = [f"{1000 * figure:.0f}" for figure in (*figures, self.allowed)]
        return [self.name, *shown, f"{len(self.refused)}", "fair" if self.is_fair else "UNFAIR"]


HEAD = ["attack", "alone p50 ms", "p95", "attacked p50", "p95", "allowed p95", "refused", "verdict"]


@dataclass(frozen=True)
class Family:
    """Scenarios that one server is started for.

    `settings` are its environment variables, besides the model and the keys. In their values, {model} stands for the
    model's directory and {folder} for the server's own folder.
    """

    name: str
    scenarios: Sequence[Scenario]
    settings: Mapping[str, str]

    def settings_at(self, folder: Path, model: Path) -> dict[str, str]:
        """The settings for a folder and a model."""
        return {name: value.format(folder=folder, model=model) for name, value in self.settings.items()}


async def run(scenario: Scenario, place: Place, effort: Effort) -> Row:
    """Measure alone and attacked, in turns."""
    row = Row(scenario.name, is_timed=effort.is_timed)
    await _ask(scenario, place, [], [])  # the first request of a kind prepares more than others
    before: dict[float, float] = {}
    passes: dict[float, float] = {}
    for _ in range(effort.rounds):
        for _ in range(effort.requests):
            await _ask(scenario, place, row.alone, row.refused)
        before = await place.passes()
        with _attacking(scenario, place, niceness=19 if effort.is_timed else 0) as attack:
            await asyncio.sleep(effort.settle)
            for number in range(effort.requests):
                await _ask(scenario, place, row.attacked, row.refused)
                if number == 0 and not scenario.order(tally := _tally(attack)):
                    row.disorder.append(f"{tally} when the first request ended")
            if mistake := _tally(attack).mistake:
                row.disorder.append(f"the attack is none: {mistake}")
            after = await _settled(place, before)
            for limit, value in after.items():
                passes[limit] = passes.get(limit, 0.0) + value - before.get(limit, 0.0)
        await place.idle()
    if effort.is_timed:
        row.allowance = longest_pass(passes) if scenario.allowance is None else await scenario.allowance(place)
    return row


@contextmanager
def _attacking(scenario: Scenario, place: Place, niceness: int) -> Iterator[Connection]:
    """An attack from a process of its own.

    The clients of an attacker run on other machines. Where times are judged, a niceness of 19 therefore leaves them the
    processor time that the server and the measurement do not use. Where other programs keep all processors busy, such a
    process would hardly begin.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_attack, args=(scenario, place, there, niceness), daemon=True)
    process.start()
    try:
        if not here.poll(_CALM) or here.recv() is not True:
            raise RuntimeError(f"the attack {scenario.name} does not begin")
        yield here
    finally:
        with suppress(OSError):  # it has not begun
            here.send(False)
        process.join(_LEAVE)
        process.kill()
        process.join()


def _attack(scenario: Scenario, place: Place, parent: Connection, niceness: int) -> None:
    async def attack() -> None:
        async with scenario.attack(place):
            parent.send(True)
            while await asyncio.to_thread(parent.recv):
                parent.send(place.tally)

    os.nice(niceness)
    asyncio.run(attack())


def _tally(attack: Connection) -> Tally:
    """How the attacker's requests have ended up to now."""
    attack.send(True)
    found: Tally = attack.recv()
    return found


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
    """The 95th percentile of forward passes in seconds, by the cumulative numbers of a histogram's buckets: between the
    bounds of its bucket it is interpolated, as Prometheus does.

    Raises ValueError if no pass was counted, for every attack here has some.
    """
    limits = sorted(number)
    if not limits or not number[limits[-1]]:
        raise ValueError("the server has counted no forward pass that reads a prompt")
    rank, low, below = 0.95 * number[limits[-1]], 0.0, 0.0
    for limit in limits[:-1]:
        if number[limit] >= rank:
            return low + (limit - low) * (rank - below) / (number[limit] - below)
        low, below = limit, number[limit]
    return low


def shown_percentile(values: Sequence[float], rank: int) -> float:
    """A percentile; infinite without values."""
    found = percentile(values, rank)
    return float("inf") if found is None else found
