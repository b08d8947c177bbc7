"""Limits the concurrent calls of one tool server, and shares them fairly between API keys."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class CallSlots:
    """Allows `number` concurrent calls; further calls wait. A tenant is an API key; requests without a key are one
    tenant.

    The next call belongs to the waiting tenant with the fewest running calls; of equal tenants, to the one that has
    waited longest. If more than one call is allowed, no tenant may use all of them, so that another tenant's call can
    start at once.
    """

    def __init__(self, number: int) -> None:
        self._num_free = number
        self._max_per_tenant = max(1, number - 1)
        self._running: Counter[str] = Counter()
        # In order of arrival. The future is set when the call may run.
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None]:
        """Wait until a call of the tenant may run, and count it as running during the block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, turn))
        self._start_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((tenant, turn))
            else:  # it was given the place at the same moment
                self._release(tenant)
            raise
        try:
            yield
        finally:
            self._release(tenant)

    def _release(self, tenant: str) -> None:
        self._num_free += 1
        self._running[tenant] -= 1
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._num_free:
            able = [
                each for each in self._waiting if not each[1].done() and self._running[each[0]] < self._max_per_tenant
            ]
            if not able:
                return
            chosen = min(able, key=lambda each: self._running[each[0]])
            self._waiting.remove(chosen)
            self._num_free -= 1
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)
