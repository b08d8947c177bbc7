"""Turns between tenants: start-time fair queuing of the service that each has received.

A tenant stands for one API key (requests without a key are one tenant), or for one request of a key where the requests
of a key take turns, too. What it receives is counted in whatever is scarce: tokens of a model, seconds of a process.

Each tenant has a virtual time, the service that it has received, and the tenant with the least has the next turn. A
tenant that arrives, because nothing of it waited, starts at the virtual time of those that wait. So it saves up no
turns while it is absent, and does not pay for what it received while nobody else was present. A tenant of which
something waits for another reason than its turn, such as memory, saves up at most `max_credit`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Account:
    """What a tenant has received."""

    # Its virtual time.
    time: float
    # Orders tenants of equal times by their last turns; 0 before the first one.
    last_turn: int = 0


class FairQueue:
    """The virtual times of the tenants of one priority class."""

    def __init__(self, max_credit: float = math.inf) -> None:
        self._max_credit = max_credit
        self._accounts: dict[str, _Account] = {}
        # The latest virtual time of any tenant.
        self._latest = 0.0
        self._num_turns = 0

    def arrive(self, tenant: str, present: Iterable[str]) -> None:
        """Start to count for a tenant of which nothing waited. `present` are the others, of which something does."""
        start = max(self._time(tenant), self._start(set(present) - {tenant}))
        account = self._accounts.get(tenant)
        if account is None:
            # Those that would start at the same time without an account need none.
            self._accounts = {name: kept for name, kept in self._accounts.items() if kept.time > self._earliest}
            self._accounts[tenant] = _Account(start)
        else:
            account.time = start

    def leave(self, tenant: str, present: Iterable[str]) -> None:
        """Note that nothing of a tenant waits or is served any more, and that it may come back.

        What it has received is remembered only if it makes a difference then. `present` are the others.
        """
        if self._time(tenant) <= self._start(present):
            self.forget(tenant)

    def forget(self, tenant: str) -> None:
        """Forget a tenant that does not come back."""
        self._accounts.pop(tenant, None)

    def serve(self, tenant: str, amount: float) -> None:
        """Count service that a tenant has received."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(self._earliest)
        self._num_turns += 1
        account.last_turn = self._num_turns
        account.time = max(account.time, self._earliest) + amount
        self._latest = max(self._latest, account.time)

    def turn(self, tenant: str, in_flight: float = 0.0) -> tuple[float, int]:
        """A tenant's place in the order of turns, as a sort key: of several tenants, the one with the least is next.

        That is the tenant with the least virtual time, to which `in_flight` is added: service that the tenant is
        receiving now, and that `serve` has not counted yet. Of tenants with equal times, it is the one whose last turn
        is longest ago, and before all of these one that has had no turn yet.
        """
        account = self._accounts.get(tenant)
        return self._time(tenant) + in_flight, 0 if account is None else account.last_turn

    @property
    def _earliest(self) -> float:
        """The virtual time of a tenant with the highest credit."""
        return max(0.0, self._latest - self._max_credit)

    def _start(self, present: Iterable[str]) -> float:
        """The virtual time at which a tenant without an account starts next to others."""
        return min((self._time(other) for other in present), default=self._latest)

    def _time(self, tenant: str) -> float:
        """A tenant's virtual time."""
        account = self._accounts.get(tenant)
        return self._earliest if account is None else max(account.time, self._earliest)
