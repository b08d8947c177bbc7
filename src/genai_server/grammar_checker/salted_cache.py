"""A cache whose entries are found only by those who made them."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class SaltedCache(Generic[V]):
    """Values by salt and key, within a number of entries.

    Whether something is cached shows in how long an answer takes, so requests with different salts must share nothing.
    The least recently used entry of the salt with the most entries is dropped first: nobody can push out what others
    use.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._by_salt: dict[str | None, OrderedDict[Hashable, V]] = {}
        self._num_entries = 0

    def __len__(self) -> int:
        return self._num_entries

    def get(self, salt: str | None, key: Hashable) -> V | None:
        """The value of a key; None if it is not cached for the salt."""
        entries = self._by_salt.get(salt)
        if entries is None or key not in entries:
            return None
        entries.move_to_end(key)
        return entries[key]

    def put(self, salt: str | None, key: Hashable, value: V) -> None:
        """Cache a value."""
        entries = self._by_salt.setdefault(salt, OrderedDict())
        self._num_entries += key not in entries
        entries[key] = value
        entries.move_to_end(key)
        while self._num_entries > self._max_entries:
            self._drop_one()

    def _drop_one(self) -> None:
        salt, entries = max(self._by_salt.items(), key=lambda item: len(item[1]))
        entries.popitem(last=False)
        self._num_entries -= 1
        if not entries:
            del self._by_salt[salt]
