"""An LRU cache whose entries are only found with the salt under which they were stored."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class SaltedCache(Generic[V]):
    """Cached values by salt and key, with a maximum number of entries.

    Response times reveal whether something is cached, so requests with different salts must share nothing. If there are
    too many entries, the least recently used entry of the salt with the most entries is dropped: no salt can evict what
    others use.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._by_salt: dict[str | None, OrderedDict[Hashable, V]] = {}
        self._num_entries = 0

    def __len__(self) -> int:
        return self._num_entries

    def get(self, salt: str | None, key: Hashable) -> V | None:
        """Return the cached value for a salt and key; None if there is none."""
        entries = self._by_salt.get(salt)
        if entries is None or key not in entries:
            return None
        entries.move_to_end(key)
        return entries[key]

    def put(self, salt: str | None, key: Hashable, value: V) -> None:
        """Cache a value for a salt and key."""
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
