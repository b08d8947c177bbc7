"""Attempts by their numbers, some of them at the same time, and what became of each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

CLIENTS = 4


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt. `seconds` are those that count, if not all of the attempt's own do."""

    kind: str
    result: str
    complaint: str | None = None
    seconds: float | None = None


@dataclass
class Campaign:
    """All attempts of one seed, and what they have shown."""

    seed: int
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    # Broken promises with the number of an attempt, or of the whole.
    failures: list[tuple[int, str]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    # Seconds and number of an attempt.
    slowest: tuple[float, int] = (0.0, 0)
    # Further rows of the report.
    figures: list[list[str]] = field(default_factory=list)

    async def run(self, numbers: range, attempt: Callable[[int], Awaitable[Outcome]], clients: int = CLIENTS) -> None:
        """Make the attempts with these numbers. One that raises an error has broken a promise."""
        left = iter(numbers)
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._work(left, attempt))

    async def _work(self, numbers: Iterator[int], attempt: Callable[[int], Awaitable[Outcome]]) -> None:
        for number in numbers:
            started = time.monotonic()
            try:
                outcome = await attempt(number)
            except Exception as error:
                outcome = Outcome("error", type(error).__name__, f"{type(error).__name__}: {error}")
            seconds = time.monotonic() - started if outcome.seconds is None else outcome.seconds
            self.results[outcome.kind, outcome.result] += 1
            self.slowest = max(self.slowest, (seconds, number))
            if outcome.complaint is not None:
                self.failures.append((number, outcome.complaint))
