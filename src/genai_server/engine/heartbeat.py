"""An engine's heartbeats, by which its supervisor notices that it hangs."""

import time
from collections.abc import Callable

from genai_server.messages.launch import BEAT_SECONDS, Beat
from genai_server.timing import Clock


class Heartbeat:
    """Owned by the loop's thread, which sends a beat before each pass: native code may hold Python's lock during it.

    A beat that says the same as the last one is left out for BEAT_SECONDS, because each one wakes the supervisor.
    `send` must not block.
    """

    def __init__(self, send: Callable[[Beat], None] = lambda beat: None, clock: Clock = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._last = Beat()
        # When the next beat is sent that says the same.
        self._next = clock()
        # The bytes of keys and values in memory.
        self.kv_bytes = 0

    def beat(self, tokens: int, requests: int, arrived: int) -> None:
        """Announce a pass with this number of tokens in all rows, or with 0 that none begins.

        `requests` are the running and waiting ones, `arrived` those that have ever arrived.
        """
        last, now = self._last, self._clock()
        if now < self._next and tokens == last.tokens and bool(requests) == bool(last.requests):
            return
        self._last = Beat(last.number + 1, tokens, requests, arrived, self.kv_bytes)
        self._next = now + BEAT_SECONDS
        self._send(self._last)
