"""Limits the memory (or disk space) that the bodies of all current requests may take together, and shares it among API
keys. `BodyBudget` has the limit, and a `HeldBody` counts the bytes of one body.

A single key may use the whole limit. As soon as other keys send bodies, too, each key has an equal share. To give a key
its share, the server refuses bodies of keys that hold more than theirs, while these bodies are still arriving.
"""

from collections.abc import Callable, Hashable

from genai_server.errors import BodiesTooLarge

# For the HTTP server's WebSockets, the app leaves the BodyBudget in the state of its lifespan, and the key of each
# WebSocket in the state of its scope.
BODY_BUDGET = "body_budget"
BODY_KEY = "body_key"

# The first bytes of a body count apart from the rest, so that large bodies never refuse small ones.
SMALL = 1024 * 1024


class _Pool:
    """Counts the bytes of request bodies that count towards one of the limits of a BodyBudget, in total and for each
    API key.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        # Keys that hold nothing are absent.
        self.held: dict[Hashable, int] = {}

    def add(self, key: Hashable, num_bytes: int) -> None:
        """Add `num_bytes`, which may be negative, to the bytes that the API key `key` holds."""
        self.total += num_bytes
        key_bytes = self.held.pop(key, 0) + num_bytes
        if key_bytes:
            self.held[key] = key_bytes

    def num_keys(self, key: Hashable) -> int:
        """Return the number of API keys that hold bytes, in which `key` counts even if it holds none."""
        return len(self.held.keys() | {key})


class HeldBody:
    """The bytes of one request body that are in memory or on disk. They count towards the limit until they are
    released. `BodyBudget.open` creates it.

    If another API key needs its share of the limit while this body is still arriving, the body is revoked: it no longer
    counts, and `on_revoked` is called. The receiver must then drop what has arrived and refuse the request with the
    error that is passed to `on_revoked`.
    """

    def __init__(self, budget: "BodyBudget", key: Hashable, on_revoked: Callable[[BodiesTooLarge], None]) -> None:
        self.key = key
        # Bytes that count now.
        self.num_bytes = 0
        # Whether it may still be revoked.
        self.is_arriving = True
        self.on_revoked = on_revoked
        # Whether the parsed request keeps the data of images or audio, so that parsing releases nothing.
        self.has_media = False
        self._budget = budget

    def resize(self, num_bytes: int) -> None:
        """Set the number of bytes that count for this body to `num_bytes`. Called for each part of the body that
        arrives.

        Raises BodiesTooLarge if the limit does not allow this; the body then counts as before.
        """
        self._budget.resize(self, num_bytes)
        self.num_bytes = num_bytes

    def arrived(self) -> None:
        """Record that the body has arrived completely, after which it cannot be revoked."""
        self.is_arriving = False

    def parsed(self) -> None:
        """Stop counting the body because its text has been parsed and dropped. A body with images or audio is counted
        further, because the parsed request contains their data.
        """
        if not self.has_media:
            self.release()

    def release(self) -> None:
        """Stop counting the body, because nothing of it is kept any more. May be called several times."""
        self.resize(0)


class BodyBudget:
    """Counts the bytes of request bodies while they are held, and divides the limit equally among the API keys that
    send bodies. For use in the event loop only.

    If a limit is reached, a body that takes its key beyond the key's share is refused with BodiesTooLarge. For a body
    within its key's share, bodies of keys beyond their shares are revoked (dropped while they arrive). A body that has
    arrived is never revoked, so all bodies together may reach twice a limit. While no other body is held, a body is
    accepted whatever its size.

    There are two separate limits of `max_bytes` each: one for the first MiB of all bodies, and one for the bytes beyond
    the first MiB, so that large bodies never make small ones fail. Error messages name `setting` as the setting that
    has the limit.
    """

    def __init__(self, max_bytes: int, setting: str = "GENAI_MAX_BODIES_BYTES") -> None:
        self._setting = setting
        self._pools = (_Pool(max_bytes), _Pool(max_bytes))
        # In the order of their first bytes. Bodies without bytes are absent.
        self._bodies: dict[HeldBody, None] = {}

    def open(self, key: Hashable, on_revoked: Callable[[BodiesTooLarge], None] = lambda error: None) -> HeldBody:
        """Register a body that begins to arrive, and return the object that counts its bytes. `key` identifies the
        request's API key; it is None for requests without a key, which share one part of the limit.

        `on_revoked` is called, with the error for the request, if the body must be dropped before it has arrived.
        """
        return HeldBody(self, key, on_revoked)

    def resize(self, body: HeldBody, num_bytes: int) -> None:
        """Set the number of bytes that count for `body` to `num_bytes`. Raises BodiesTooLarge if a limit does not allow
        this.
        """
        before, after = _parts(body.num_bytes), _parts(num_bytes)
        for pool, old, new in zip(self._pools, before, after, strict=True):
            if new > old:
                self._make_room(pool, body, old, new)
        for pool, old, new in zip(self._pools, before, after, strict=True):
            pool.add(body.key, new - old)
        if num_bytes:
            self._bodies.setdefault(body)
        else:
            self._bodies.pop(body, None)

    def _make_room(self, pool: _Pool, body: HeldBody, old: int, new: int) -> None:
        """Make sure that a body may have `new` bytes in a pool instead of `old`, by revoking bodies of other keys where
        needed.

        Raises BodiesTooLarge if that would not help, because the body's own key holds more than its share.
        """
        excess = pool.total + new - old - pool.limit
        if excess <= 0 or pool.total == old:
            return
        key_bytes, num_keys = pool.held.get(body.key, 0), pool.num_keys(body.key)
        share = pool.limit // num_keys
        if key_bytes + new - old <= share:
            self._take_back(pool, body.key, excess, share)
            return
        details = f"of which each of {num_keys} API keys has a share of {share}, and this one holds {key_bytes}"
        raise BodiesTooLarge(
            f"the bodies of all requests together may have at most {pool.limit} bytes ({self._setting}), "
            f"{f'and {pool.total} are there' if num_keys == 1 else details}; try again"
        )

    def _take_back(self, pool: _Pool, key: Hashable, num_bytes: int, share: int) -> None:
        """Revoke arriving bodies of keys other than `key` that hold more than `share` bytes in the pool, until
        `num_bytes` bytes are free or no such body is left. The key that holds most loses its newest body first.
        """
        error = BodiesTooLarge(
            f"the bodies of all requests together may have at most {pool.limit} bytes ({self._setting}); another API "
            f"key needed its share of {share} while this one held more; try again"
        )
        enough = pool.total - num_bytes
        while pool.total > enough and (victim := self._revocable(pool, key, share)) is not None:
            victim.release()
            victim.is_arriving = False
            victim.on_revoked(error)

    def _revocable(self, pool: _Pool, key: Hashable, share: int) -> HeldBody | None:
        """Return the next body to revoke in favor of the API key `key`: the newest body that is still arriving of
        another key that holds more than `share` bytes in the pool. Keys that hold more bytes lose bodies first. None if
        there is no such body.
        """
        holders = sorted(pool.held, key=lambda holder: pool.held[holder], reverse=True)
        index = self._pools.index(pool)
        for holder in holders:
            if holder == key or pool.held[holder] <= share:
                continue
            for body in reversed(self._bodies):
                if body.key == holder and body.is_arriving and _parts(body.num_bytes)[index]:
                    return body
        return None


def _parts(num_bytes: int) -> tuple[int, int]:
    """Divide the size of a body, `num_bytes`, into the bytes that count towards the limit of the first MiB of bodies,
    and those that count towards the limit of the bytes beyond.
    """
    first = min(num_bytes, SMALL)
    return first, num_bytes - first
