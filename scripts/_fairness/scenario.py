"""One attack of a key on another one: what is measured, alone and attacked in turns, and what is allowed."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import re
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import numpy as np

from genai_server.tools.bench.measurement import percentile

from .clients import Place, Refused, Tally, place_at

# How many times slower the requests of the key that behaves may become, besides one pass or task.
_RATIO = 3.0
# How often the largest task is measured.
_TASKS = 3
# Seconds that an attack has before the first attacked request, and after which the engine, which reports once a second,
# has reported the attack's passes.
_SECONDS_TO_SETTLE, _SECONDS_TO_REPORT = 2.0, 2.0
# Seconds within which an attack must begin, and what it has left must end.
_CALM = 120.0
# Seconds after which the process of an attack is killed.
_LEAVE = 2.0
_BUCKET = re.compile(r'^genai:prefill_step_time_seconds_bucket\{[^}]*\ble="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)

Attack = Callable[[Place], AbstractAsyncContextManager[object]]
Ask = Callable[[Place], Awaitable[httpx.Response]]


@dataclass(frozen=True)
class Scenario:
    """An attack on what one request of the key that behaves takes.

    `request` raises Refused. The attack runs while the context is open. `allowance` are the seconds that are allowed
    besides _RATIO times those alone, or a task that takes them; without one, those of a forward pass. Of `waiting`
    requests that the attacker sends at first, some must still wait when the first attacked request has ended, however
    long that took.
    """

    name: str
    request: Ask
    attack: Attack
    allowance: float | Ask | None = None
    waiting: int | None = None


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


@dataclass
class Row:
    """What was measured of a scenario, in seconds."""

    name: str
    # Whether the times of requests are judged.
    is_timed: bool
    alone: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    allowance: float = 0.0
    # How refused requests ended.
    refused: list[str] = field(default_factory=list)
    # What was wrong with the attack, or with the order of requests.
    disorder: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> float:
        """The highest 95th percentile that an attack may cause."""
        return _RATIO * _percentile(self.alone, 95) + self.allowance

    @property
    def is_fair(self) -> bool:
        """Whether no request was refused, all came in their turns, and none took too long."""
        if self.refused or self.disorder or not self.attacked:
            return False
        return not self.is_timed or _percentile(self.attacked, 95) <= self.allowed

    def cells(self) -> list[str]:
        """The row of the table, in milliseconds."""
        figures = [_percentile(values, rank) for values in (self.alone, self.attacked) for rank in (50, 95)]
        shown = [f"{1000 * figure:.0f}" for figure in (*figures, self.allowed)]
        return [self.name, *shown, f"{len(self.refused)}", "fair" if self.is_fair else "UNFAIR"]


HEAD = ["attack", "alone p50 ms", "p95", "attacked p50", "p95", "allowed p95", "refused", "verdict"]


def _percentile(values: Sequence[float], rank: int) -> float:
    return percentile(values, rank) or math.inf


async def run(scenario: Scenario, port: int, rounds: int, requests: int, *, is_timed: bool) -> Row:
    """Measure so many requests alone and attacked, in turns."""
    row = Row(scenario.name, is_timed)
    passes: Counter[float] = Counter()
    async with place_at(port) as place:
        await _ask(scenario, place, [], [])  # the first request of a kind prepares more than others
        for _ in range(rounds):
            for _ in range(requests):
                await _ask(scenario, place, row.alone, row.refused)
            before = await _passes(place)
            with _attacking(scenario, port, niceness=19 if is_timed else 0) as attack:
                await asyncio.sleep(_SECONDS_TO_SETTLE)
                await _ask(scenario, place, row.attacked, row.refused)
                tally = _tally(attack)
                if scenario.waiting is not None and tally.answered + tally.refused >= scenario.waiting:
                    row.disorder.append(f"{tally} when the first request ended")
                for _ in range(requests - 1):
                    await _ask(scenario, place, row.attacked, row.refused)
                if mistake := _tally(attack).mistake:
                    row.disorder.append(f"the attack is none: {mistake}")
                await asyncio.sleep(_SECONDS_TO_REPORT)
                passes += await _passes(place) - before
            await _idle(place)
        if is_timed:
            row.allowance = await _allowance(scenario, place, passes)
    return row


async def _ask(scenario: Scenario, place: Place, into: list[float], refused: list[str]) -> None:
    try:
        into.append((await scenario.request(place)).elapsed.total_seconds())
    except Refused as error:
        refused.append(str(error))


async def _allowance(scenario: Scenario, place: Place, passes: Counter[float]) -> float:
    """The seconds of a pass or task. Raises ValueError if no pass was counted, for every attack here has some."""
    if isinstance(scenario.allowance, float):
        return scenario.allowance
    if scenario.allowance is not None:
        tasks = [await scenario.allowance(place) for _ in range(_TASKS)]
        return statistics.median(task.elapsed.total_seconds() for task in tasks)
    if not passes:
        raise ValueError("the server has counted no forward pass that reads a prompt")
    # The 95th percentile, between the bounds of its bucket interpolated as Prometheus does.
    *limits, infinity = sorted(passes)
    return float(np.interp(0.95 * passes[infinity], [0, *(passes[limit] for limit in limits)], [0, *limits]))


async def _passes(place: Place) -> Counter[float]:
    """The numbers of forward passes up to now that read prompts and took at most these seconds."""
    found: Counter[float] = Counter()
    for limit, number in _BUCKET.findall((await place.operator.get("/metrics")).text):
        found[float(limit)] += int(float(number))
    return found


async def _idle(place: Place) -> None:
    """Wait until no request runs or waits."""
    async with asyncio.timeout(_CALM):
        # While no model is loaded there is no list.
        while (await place.operator.get("/v1/requests")).json().get("data"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@contextmanager
def _attacking(scenario: Scenario, port: int, niceness: int) -> Iterator[Connection]:
    """An attack from a process of its own.

    The clients of an attacker run on other machines. Where times are judged, a niceness of 19 therefore leaves them the
    processor time that the server and the measurement do not use. Where other programs keep all processors busy, such a
    process would hardly begin.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_attack, args=(scenario, port, there, niceness), daemon=True)
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


def _attack(scenario: Scenario, port: int, parent: Connection, niceness: int) -> None:
    async def attack() -> None:
        async with place_at(port) as place, scenario.attack(place):
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
