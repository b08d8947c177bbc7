"""Who comes next where several take turns: the one that has used least."""

from collections.abc import Iterable, Mapping


class Usage:
    """How much each of several users has used.

    A user that comes, or comes back, begins with at least as much as the one that was chosen last: it gains nothing
    from the time in which it used nothing, and need not make up for what others used before.
    """

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        # What the user that was chosen last had used.
        self._level = 0.0

    def arrive(self, user: str) -> None:
        """Count a user among those that want something."""
        self._used[user] = max(self._used.get(user, 0.0), self._level)

    def leave(self, user: str, *, comes_back: bool) -> None:
        """Note that a user wants nothing more. What it has used is remembered only if it may come back."""
        if not comes_back or self._used.get(user, 0.0) <= self._level:
            self._used.pop(user, None)

    def add(self, user: str, amount: float) -> None:
        """Count what a user has used."""
        self._used[user] = self._used.get(user, self._level) + amount

    def in_order(self, users: Iterable[str], using: Mapping[str, float]) -> list[str]:
        """Users that want something, the next one first; among equals the order stays.

        `using` is what they are using and is not counted yet.
        """
        return sorted(users, key=lambda user: self._used.get(user, 0.0) + using.get(user, 0.0))

    def choose(self, user: str) -> None:
        """Note that it is this user's turn."""
        self._level = max(self._level, self._used.get(user, 0.0))
