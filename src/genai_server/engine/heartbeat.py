"""Heartbeats of an engine, by whose absence the supervisor notices that the engine hangs."""

import time
from collections.abc import Callable

from genai_server.messages.launch import BEAT_SECONDS, Beat
from genai_server.timing import Clock


class Heartbeat:
    """Sends heartbeats. Used by the thread of the engine's loop only.

    A heartbeat is sent before each pass, because native code may hold the GIL during the pass. As each one wakes the
    supervisor, a heartbeat with the same content as the last one is left out for BEAT_SECONDS. `send` must not block.
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
        """Report that a pass with this number of tokens in all rows begins, or with 0 that none begins.

        `requests` is the number of running and waiting requests, `arrived` of all that have ever arrived.
        """
        last, now = self._last, self._clock()
        if now < self._next and tokens == last.tokens and bool(requests) == bool(last.requests):
            return
        self._last = Beat(last.number + 1, tokens, requests, arrived, self.kv_bytes)
        self._next = now + BEAT_SECONDS
        self._send(self._last)
