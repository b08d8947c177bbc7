"""A limit for the bytes of all request bodies together, which API keys share.

A key alone may use all of it. As soon as others send bodies, too, each key has an equal share, and takes it back from
the keys that hold more than theirs.
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
    """Bytes that bodies hold together, at most `limit`, and how many of them the bodies of each key hold."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        # Keys that hold nothing are absent.
        self.held: dict[Hashable, int] = {}

    def add(self, key: Hashable, num_bytes: int) -> None:
        """Count bytes of a key's body, or remove them again if the number is negative."""
        self.total += num_bytes
        held = self.held.pop(key, 0) + num_bytes
        if held:
            self.held[key] = held

    def num_keys(self, key: Hashable) -> int:
        """The number of keys that hold bytes, `key` included."""
        return len(self.held.keys() | {key})


class HeldBody:
    """The bytes of one body that are in memory or on disk. They count until they are released.

    `on_revoked` is called if another key needs its share while this body is still arriving. The body is then released,
    and whoever receives it must drop what has come and refuse the request with the error.
    """

    def __init__(self, budget: "BodyBudget", key: Hashable, on_revoked: Callable[[BodiesTooLarge], None]) -> None:
        self.key = key
        # Bytes that count now.
        self.num_bytes = 0
        # Whether it may still be revoked.
        self.is_arriving = True
        self.on_revoked = on_revoked
        # Whether the parsed request keeps the data of images or sounds, so that parsing releases nothing.
        self.has_media = False
        self._budget = budget

    def resize(self, num_bytes: int) -> None:
        """Count this number of bytes from now on.

        Raises BodiesTooLarge if the limit of all bodies does not allow it; then it counts as before.
        """
        self._budget.resize(self, num_bytes)
        self.num_bytes = num_bytes

    def arrived(self) -> None:
        """The body is complete, and will not be revoked any more."""
        self.is_arriving = False

    def parsed(self) -> None:
        """Release the body, of which only the parsed request is left; one with images or sounds counts on."""
        if not self.has_media:
            self.release()

    def release(self) -> None:
        """Nothing of the body is kept any more. May be called repeatedly."""
        self.resize(0)


class BodyBudget:
    """Counts the bytes of bodies, from their first bytes until they are released, and shares the limit among keys.

    The first MiB of each body counts towards one limit of `max_bytes`, and everything else towards another. A single
    body is exempt. Bodies that no other key can take back, because they are complete, may exceed a limit by once its
    size. Belongs to the event loop. `setting` has the limit.
    """

    def __init__(self, max_bytes: int, setting: str = "GENAI_MAX_BODIES_BYTES") -> None:
        self._setting = setting
        self._pools = (_Pool(max_bytes), _Pool(max_bytes))
        # In the order of their first bytes. Bodies without bytes are absent.
        self._bodies: dict[HeldBody, None] = {}

    def open(self, key: Hashable, on_revoked: Callable[[BodiesTooLarge], None] = lambda error: None) -> HeldBody:
        """A body that begins, of the API key that `key` stands for. All requests without a key are one key, None."""
        return HeldBody(self, key, on_revoked)

    def resize(self, body: HeldBody, num_bytes: int) -> None:
        """Count this number of bytes for a body. Raises BodiesTooLarge."""
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
        """Let a body have `new` bytes in a pool instead of `old`. Raises BodiesTooLarge."""
        excess = pool.total + new - old - pool.limit
        if excess <= 0 or pool.total == old:
            return
        held, num_keys = pool.held.get(body.key, 0), pool.num_keys(body.key)
        share = pool.limit // num_keys
        if held + new - old <= share:
            self._take_back(pool, body.key, excess, share)
            return
        own = f"of which each of {num_keys} API keys has a share of {share}, and this one holds {held}"
        raise BodiesTooLarge(
            f"the bodies of all requests together may have at most {pool.limit} bytes ({self._setting}), "
            f"{f'and {pool.total} are there' if num_keys == 1 else own}; try again"
        )

    def _take_back(self, pool: _Pool, key: Hashable, num_bytes: int, share: int) -> None:
        """Revoke bodies of keys that hold more than the share: the largest holder's newest body first."""
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
        """The body that is revoked next for `key`; None if all others are within their shares, or complete."""
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
    """The bytes of a body that count towards the limit of first bytes, and those that count towards the other one."""
    first = min(num_bytes, SMALL)
    return first, num_bytes - first
