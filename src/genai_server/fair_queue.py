"""Decides which tenant has the next turn (`FairQueue`), so that all tenants that have work receive equal service:
start-time fair queuing.

A tenant is an API key (all requests without a key are one tenant), or one request of a key where requests of a key take
turns, too. The service is counted in the scarce resource: tokens of a model, or seconds of a process.

Each tenant has a virtual time, which is the service that it has received, and the tenant with the smallest virtual time
has the next turn. A tenant whose first work begins to wait starts at the virtual time of the tenants that wait. So a
tenant does not save up turns while it is absent, and does not pay for service that it received while no other tenant
was present. A tenant that waits for another reason than its turn, such as memory, saves up at most `max_credit`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Account:
    """What a FairQueue keeps of one tenant: its virtual time, and the number of its last turn."""

    # Its virtual time.
    time: float
    # Orders tenants of equal times by their last turns; 0 before the first one.
    last_turn: int = 0


class FairQueue:
    """Decides which tenant has the next turn, from the service that each tenant has received. The tenants are those of
    one priority class. The queue holds no work: whoever holds it reports with `arrive`, `serve` and `leave`, and sorts
    tenants by `turn`.

    `max_credit`, in the unit of the service, limits by how much a tenant that waits for another reason than its turn,
    such as memory, may fall behind the others and later catch up.
    """

    def __init__(self, max_credit: float = math.inf) -> None:
        self._max_credit = max_credit
        self._accounts: dict[str, _Account] = {}
        # The latest virtual time of any tenant.
        self._latest = 0.0
        self._num_turns = 0

    def arrive(self, tenant: str, present: Iterable[str]) -> None:
        """Record that work of a tenant begins to wait while none of its work was waiting. `present` are the other
        tenants with waiting work.
        """
        start = max(self._time(tenant), self._start(set(present) - {tenant}))
        account = self._accounts.get(tenant)
        if account is None:
            # Those that would start at the same time without an account need none.
            self._accounts = {name: past for name, past in self._accounts.items() if past.time > self._earliest}
            self._accounts[tenant] = _Account(start)
        else:
            account.time = start

    def leave(self, tenant: str, present: Iterable[str]) -> None:
        """Record that no work of a tenant waits or is served any more. The tenant may come back.

        The service that the tenant has received is remembered only if it would matter when the tenant comes back.
        `present` are the other tenants with waiting work.
        """
        if self._time(tenant) <= self._start(present):
            self.forget(tenant)

    def forget(self, tenant: str) -> None:
        """Remove what is kept of a tenant that will not come back."""
        self._accounts.pop(tenant, None)

    def serve(self, tenant: str, amount: float) -> None:
        """Record that a tenant has had a turn, and add `amount` to the service that it has received. `amount` is in the
        unit of the queue, such as tokens or seconds.
        """
        account, earliest = self._accounts.get(tenant), self._earliest
        if account is None:
            account = self._accounts[tenant] = _Account(earliest)
        self._num_turns += 1
        account.last_turn = self._num_turns
        account.time = max(account.time, earliest) + amount
        self._latest = max(self._latest, account.time)

    def turn(self, tenant: str, in_flight: float = 0.0) -> tuple[float, int]:
        """Return a sort key for the order of turns: the tenant with the smallest key is next.

        The key has the tenant's virtual time plus `in_flight`, the service that the tenant is receiving now and that
        `serve` has not counted yet. Among tenants with equal times, the one whose last turn is longest ago comes first,
        and tenants that have had no turn come before it.
        """
        account = self._accounts.get(tenant)
        return self._time(tenant) + in_flight, 0 if account is None else account.last_turn

    @property
    def _earliest(self) -> float:
        """The smallest virtual time that a tenant can have: that of a tenant that has saved up the maximum credit."""
        return max(0.0, self._latest - self._max_credit)

    def _start(self, present: Iterable[str]) -> float:
        """Return the virtual time at which a tenant that the queue does not know starts while the tenants `present` are
        waiting: the smallest of their virtual times.
        """
        return min((self._time(other) for other in present), default=self._latest)

    def _time(self, tenant: str) -> float:
        """Return a tenant's virtual time, which is at least the smallest one that a tenant can have."""
        account = self._accounts.get(tenant)
        return self._earliest if account is None else max(account.time, self._earliest)
