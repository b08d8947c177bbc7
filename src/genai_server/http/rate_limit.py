"""Rate limits of each API key: concurrent answers and reads, and requests per minute."""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from genai_server.errors import InvalidField, RateLimitExceeded
from genai_server.http.api_keys import ApiKey
from genai_server.timing import Clock

_WINDOW = 60.0
# The weight of the latest request in the moving average of durations.
_LATEST = 0.2


@dataclass
class _Usage:
    """Current use of one key."""

    # Number of running requests, of which those for several answers count as many times.
    running: int = 0
    # Number of running reads of stored responses.
    reading: int = 0
    # Start times of the last minute's requests, in seconds.
    begun: deque[float] = field(default_factory=deque)
    # The mean duration of a request in seconds.
    seconds: float = 0.0


class RateLimits:
    """Limits the requests of each key in this process. Owned by the event loop."""

    def __init__(self, concurrent: int, rate: int, clock: Clock) -> None:
        # Concurrent answers and requests per minute of keys without limits of their own; 0 is no limit.
        self._concurrent = concurrent
        self._rate = rate
        # In seconds.
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    @contextmanager
    def request(self, key: ApiKey) -> Iterator[None]:
        """Count a request while the block runs.

        Raises RateLimitExceeded, with the time to retry after, if a limit is reached. The request is then not counted.
        """
        usage = self._usages.setdefault(key.name, _Usage())
        now = self._clock()
        self._check_concurrent(key, usage.running, usage, "requests")
        self._check_rate(usage, self._rate if key.rate is None else key.rate, now)
        usage.running += 1
        try:
            yield
        finally:
            usage.running -= 1
            usage.seconds += _LATEST * (self._clock() - now - usage.seconds)

    @contextmanager
    def answers(self, key: ApiKey, number: int, param: str) -> Iterator[None]:
        """Count all answers of a request, of which `request` has counted one, while the block runs.

        Raises RateLimitExceeded, and InvalidField about the field `param` if the key may never have this many.
        """
        usage = self._usages.setdefault(key.name, _Usage())
        limit = self._concurrent if key.concurrent is None else key.concurrent
        if limit and number > limit:
            raise InvalidField(
                param,
                "asks for more answers than this key may have at once,",
                limit=limit,
                limited_by="GENAI_MAX_CONCURRENT_PER_KEY, or its own limit",
                given=number,
            )
        more = number - 1
        self._check_concurrent(key, usage.running, usage, "answers", more)
        usage.running += more
        try:
            yield
        finally:
            usage.running -= more

    @contextmanager
    def read(self, key: ApiKey) -> Iterator[None]:
        """Count a read of stored data while the block runs.

        Reads have the same limit as concurrent requests but are counted separately: the client of a background response
        reads it while the response itself counts as a request. Raises RateLimitExceeded.
        """
        usage = self._usages.setdefault(key.name, _Usage())
        self._check_concurrent(key, usage.reading, usage, "reads of stored responses and files")
        usage.reading += 1
        try:
            yield
        finally:
            usage.reading -= 1

    def _check_concurrent(self, key: ApiKey, running: int, usage: _Usage, what: str, more: int = 1) -> None:
        limit = self._concurrent if key.concurrent is None else key.concurrent
        if limit and running + more > limit:
            given = f", given {more} more" if more > 1 else ""
            raise RateLimitExceeded(
                f"too many concurrent {what}: this key may have {limit}, and has {running}{given}",
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
                f"too many requests: this key may start {limit} per minute, and has started {len(usage.begun)}",
                retry_after=_whole(usage.begun[-limit] + _WINDOW - now),
            )
        usage.begun.append(now)


def _whole(seconds: float) -> int:
    """Seconds as an integer for Retry-After."""
    return min(max(1, math.ceil(seconds)), int(_WINDOW))
