"""Turns between tenants: start-time fair queuing of the tokens that each has been served.

A tenant stands for one API key; requests without a key are one tenant. Each tenant has a virtual time, the number of
tokens that it has been served, and the tenant with the least has the next turn. A tenant of which nothing waited starts
at the virtual time of those that wait. So it saves up no turns while it is absent, and does not pay for what it used
while nobody else was present. A tenant of which something waits for another reason than its turn, such as memory, saves
up at most `max_credit` tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Account:
    """What a tenant has been served."""

    # Its virtual time in tokens.
    time: int = 0
    # Orders tenants of equal times by their last turns; 0 before the first one.
    last_turn: int = 0


class FairQueue:
    """The virtual times of the tenants of one priority class."""

    def __init__(self, max_credit: int) -> None:
        self._max_credit = max_credit
        self._accounts: dict[str, _Account] = {}
        # The latest virtual time of any tenant.
        self._latest = 0
        self._num_turns = 0

    def begin(self, tenant: str, waiting: Iterable[str]) -> None:
        """Begin to serve a tenant of which nothing waits. `waiting` are the tenants of which something does."""
        others = [self._time(other) for other in set(waiting)]
        time = max(self._time(tenant), min(others, default=self._latest))
        account = self._accounts.get(tenant)
        if account is None:
            # Those that would begin at the same time without an account need none.
            self._accounts = {name: kept for name, kept in self._accounts.items() if kept.time > self._earliest}
            account = self._accounts[tenant] = _Account()
        account.time = time

    def serve(self, tenant: str, num_tokens: int) -> None:
        """Count tokens that a tenant has been served."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        self._num_turns += 1
        account.last_turn = self._num_turns
        account.time = max(account.time, self._earliest) + num_tokens
        self._latest = max(self._latest, account.time)

    def turn(self, tenant: str) -> tuple[int, int]:
        """The sort key of tenants; the least has the next turn."""
        account = self._accounts.get(tenant)
        return self._time(tenant), 0 if account is None else account.last_turn

    @property
    def _earliest(self) -> int:
        """The virtual time of a tenant with the highest credit."""
        return self._latest - self._max_credit

    def _time(self, tenant: str) -> int:
        account = self._accounts.get(tenant)
        return self._earliest if account is None else max(account.time, self._earliest)
