"""The requests that an engine's death has cost nothing yet: each is given to the next engine of the device, once."""

import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from genai_server.engine_client.stream import TokenStream
from genai_server.errors import GenaiServerError
from genai_server.generation import FinishReason, GenerationRequest, Phases

# Seconds that a request waits for the next engine.
PATIENCE = 30.0


class Retry(Struct, frozen=True):
    """A request that waits for the next engine."""

    request: GenerationRequest
    # The reader's end of its answer.
    stream: TokenStream
    # When it began to wait, by the clock.
    since: float

    def is_late(self, waited: float) -> bool:
        """Whether its deadline has come after so many seconds."""
        return self.request.timeout is not None and waited >= self.request.timeout


class Retries:
    """What waits at one device, by the key under which its client knows it; owned by the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[int, Retry] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, key: int, stream: TokenStream) -> bool:
        """Keep it for the next engine, unless its answer has begun or it was given one chance more already."""
        request = stream.take_untouched()
        if request is not None:
            self._waiting[key] = Retry(request, stream, self._clock())
        return request is not None

    def forget(self, key: int) -> None:
        """Its reader has left."""
        self._waiting.pop(key, None)

    def take(self) -> dict[int, Retry]:
        """All of them, with as much of their time as is left; the next engine is there."""
        taken, self._waiting = self._waiting, {}
        now = self._clock()
        return {
            key: msgspec.structs.replace(retry, request=retry.request.after(now - retry.since))
            for key, retry in taken.items()
        }

    def fail(self, error: GenaiServerError, *, all: bool) -> None:
        """Give up those that have waited for too long, or all; those whose deadline has come are at their end."""
        now = self._clock()
        for key, retry in list(self._waiting.items()):
            waited = now - retry.since
            if retry.is_late(waited):
                del self._waiting[key]
                retry.stream.finish(FinishReason.TIMEOUT, Phases())
            elif all or waited >= PATIENCE:
                del self._waiting[key]
                retry.stream.fail(error)
