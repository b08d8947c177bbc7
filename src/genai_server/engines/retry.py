"""The requests that an engine's death has cost nothing yet: each is given to the next engine of the device, once."""

import time
from collections.abc import Callable

from msgspec import Struct

from genai_server.engines.stream import TokenStream
from genai_server.errors import GenaiServerError
from genai_server.generation import GenerationRequest

# Seconds that a request waits for the next engine.
PATIENCE = 30.0


class Retry(Struct, frozen=True):
    """A request that waits for the next engine, and who reads its answer; given up at a time of the clock."""

    request: GenerationRequest
    stream: TokenStream
    ends: float


class Retries:
    """What waits at one device, by the key under which its client knows it; belongs to the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[int, Retry] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, key: int, stream: TokenStream) -> bool:
        """Keep it for the next engine, unless its answer has begun or it was given one chance more already."""
        request = stream.take_untouched()
        if request is not None:
            self._waiting[key] = Retry(request, stream, self._clock() + PATIENCE)
        return request is not None

    def forget(self, key: int) -> None:
        """Its reader has left."""
        self._waiting.pop(key, None)

    def take(self) -> dict[int, Retry]:
        """All of them; the next engine is there."""
        taken, self._waiting = self._waiting, {}
        return taken

    def fail(self, error: GenaiServerError, *, all: bool) -> None:
        """Give up those that have waited for too long, or all."""
        now = self._clock()
        for key, retry in list(self._waiting.items()):
            if all or now >= retry.ends:
                del self._waiting[key]
                retry.stream.fail(error)
