"""Shares the calls that may run at once on one tool server between API keys."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Places:
    """So many calls run at once, and others wait. A tenant stands for an API key; requests without keys are one.

    A free place goes to the waiting tenant that has the fewest calls running, and of equals to the one that has waited
    longest. No tenant has all places, unless there is only one: a call of another tenant finds one free.
    """

    def __init__(self, number: int) -> None:
        self._num_free = number
        self._most = max(1, number - 1)
        self._running: Counter[str] = Counter()
        # In order of arrival. The future is set when the call may run.
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None]:
        """Wait for a place, and have it in the block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, turn))
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((tenant, turn))
            else:  # it was given the place at the same moment
                self._leave(tenant)
            raise
        try:
            yield
        finally:
            self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        self._num_free += 1
        self._running[tenant] -= 1
        self._give()

    def _give(self) -> None:
        while self._num_free:
            able = [each for each in self._waiting if not each[1].done() and self._running[each[0]] < self._most]
            if not able:
                return
            chosen = min(able, key=lambda each: self._running[each[0]])
            self._waiting.remove(chosen)
            self._num_free -= 1
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)
