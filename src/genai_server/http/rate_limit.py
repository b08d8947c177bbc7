"""Applies the limits of each API key (`RateLimits`): concurrent answers, concurrent reads of stored data, and requests
per minute.

A refusal knows the seconds after which to retry, and http/error_responses.py sends them in the header Retry-After. How
many tokens of reasoning a key may have is no rate; generation/generate.py applies it.
"""

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
    """How many requests and reads of one API key are running now, when its requests of the last minute began, and how
    long its requests take.
    """

    # Number of running requests, of which those for several answers count as many times.
    running: int = 0
    # Number of running reads of stored responses.
    reading: int = 0
    # Start times of the last minute's requests, in seconds.
    begun: deque[float] = field(default_factory=deque)
    # The mean duration of a request in seconds.
    seconds: float = 0.0


class RateLimits:
    """Counts the requests of each API key in this process and refuses those beyond the limits. For use in the event
    loop only.

    `concurrent` answers at a time and `rate` requests per minute are the limits of keys that have none of their own; 0
    means no limit.
    """

    def __init__(self, concurrent: int, rate: int, clock: Clock) -> None:
        # Concurrent answers and requests per minute of keys without limits of their own; 0 is no limit.
        self._concurrent = concurrent
        self._rate = rate
        # In seconds.
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    @contextmanager
    def request(self, key: ApiKey) -> Iterator[None]:
        """Context manager in whose block a request of this key counts.

        Raises RateLimitExceeded, with the time after which to retry, if a limit is reached. The request is then not
        counted.
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
        """Context manager in whose block a request that asks for `number` answers counts as that many requests.
        `request` must have counted one of them already.

        `param` is the field that asks for several answers. Raises InvalidField if the key may never have so many
        answers at once, and RateLimitExceeded if it may not have them now.
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
        """Context manager in whose block a read of stored data with this key counts. Raises RateLimitExceeded if too
        many reads are running.

        The limit equals that of concurrent requests, but reads are counted separately: a client reads a background
        response while the response itself counts as a request.
        """
        usage = self._usages.setdefault(key.name, _Usage())
        self._check_concurrent(key, usage.reading, usage, "reads of stored responses and files")
        usage.reading += 1
        try:
            yield
        finally:
            usage.reading -= 1

    def _check_concurrent(self, key: ApiKey, running: int, usage: _Usage, noun: str, more: int = 1) -> None:
        limit = self._concurrent if key.concurrent is None else key.concurrent
        if limit and running + more > limit:
            suffix = f", given {more} more" if more > 1 else ""
            raise RateLimitExceeded(
                f"too many concurrent {noun}: this key may have {limit}, and has {running}{suffix}",
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
    """Round a time in seconds up to a whole number for the header Retry-After, between 1 and 60."""
    return min(max(1, math.ceil(seconds)), int(_WINDOW))
