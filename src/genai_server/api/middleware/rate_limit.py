"""Rate limits of each API key: requests and reads at once, and requests within a minute."""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from genai_server.api.middleware.keys import ApiKey
from genai_server.errors import RateLimitExceeded
from genai_server.timing import Clock

_WINDOW = 60.0
# The weight of the latest request in the mean duration.
_LATEST = 0.2


@dataclass
class _Usage:
    """What one key uses."""

    # Running requests.
    running: int = 0
    # Running reads of what is stored.
    reading: int = 0
    # When the requests of the last minute began, in seconds.
    begun: deque[float] = field(default_factory=deque)
    # The mean duration of a request.
    seconds: float = 0.0


class RateLimits:
    """Limits the requests of each key in this process. Owned by the event loop."""

    def __init__(self, concurrent: int, rate: int, clock: Clock) -> None:
        # Requests at once, and within a minute, for keys without limits of their own; 0 is no limit.
        self._concurrent = concurrent
        self._rate = rate
        # In seconds.
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    @contextmanager
    def request(self, key: ApiKey) -> Iterator[None]:
        """Count a request while the block runs.

        Raises RateLimitExceeded, with the time to retry after, if a limit is reached. Then the request does not count.
        """
        usage = self._usages.setdefault(key.name, _Usage())
        now = self._clock()
        self._check_concurrent(key, usage, usage.running, "requests")
        self._check_rate(usage, self._rate if key.rate is None else key.rate, now)
        usage.running += 1
        try:
            yield
        finally:
            usage.running -= 1
            usage.seconds += _LATEST * (self._clock() - now - usage.seconds)

    @contextmanager
    def read(self, key: ApiKey) -> Iterator[None]:
        """Count a read of what is stored while the block runs.

        As many as requests may run at once, apart from these: the client of a response in the background reads it while
        that counts. Raises RateLimitExceeded.
        """
        usage = self._usages.setdefault(key.name, _Usage())
        self._check_concurrent(key, usage, usage.reading, "reads of what is stored")
        usage.reading += 1
        try:
            yield
        finally:
            usage.reading -= 1

    def _check_concurrent(self, key: ApiKey, usage: _Usage, running: int, what: str) -> None:
        limit = self._concurrent if key.concurrent is None else key.concurrent
        if limit and running >= limit:
            raise RateLimitExceeded(
                f"this key may have {limit} {what} at once, and has {running}",
                retry_after=_whole(usage.seconds / limit),
            )

    def _check_rate(self, usage: _Usage, limit: int, now: float) -> None:
        if not limit:
            usage.begun.clear()
            return
        while usage.begun and usage.begun[0] <= now - _WINDOW:
            usage.begun.popleft()
        if len(usage.begun) >= limit:
            raise RateLimitExceeded(
                f"this key may begin {limit} requests within a minute, and has begun {len(usage.begun)}",
                retry_after=_whole(usage.begun[-limit] + _WINDOW - now),
            )
        usage.begun.append(now)


def _whole(seconds: float) -> int:
    """As Retry-After has it."""
    return min(max(1, math.ceil(seconds)), int(_WINDOW))
