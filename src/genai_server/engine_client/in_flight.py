"""The requests of one API process that an engine has, or that wait for its next one."""

import time
from collections.abc import Callable
from functools import partial
from itertools import count

import msgspec
from msgspec import Struct

from genai_server.engine_client.stream import PromptProgress, TokenStream
from genai_server.errors import GenaiServerError, GenerationFailed, ModelUnloaded
from genai_server.generation import FinishReason, GenerationRequest, Phases
from genai_server.messages.protocol import (
    Accepted,
    Cancel,
    Event,
    Failed,
    Finished,
    Progress,
    PromptLogprobs,
    Refused,
    Stop,
    Submit,
    ToEngine,
    Tokens,
    Vectors,
)

# Seconds that a request waits for the next engine.
PATIENCE = 30.0


class InFlight:
    """The streams of all requests, by the key under which the engine knows them. Owned by the event loop."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        # Raises NoEngineReady if the engine is not there.
        self._send = send
        self._streams: dict[int, TokenStream] = {}
        self._retries = Retries()
        self._keys = count()

    def __len__(self) -> int:
        return len(self._streams) + len(self._retries)

    async def submit(self, *requests: GenerationRequest) -> list[TokenStream]:
        """Send requests, all at once; returns once the engine has accepted them all.

        Raises Unavailable with the engine's reason if it refuses one. Then none of them is left in the engine.
        """
        keys = [next(self._keys) for _ in requests]
        for key, request in zip(keys, requests, strict=True):
            self._send(Submit(key, request, more=key != keys[-1]))
            self._streams[key] = TokenStream(partial(self._leave, key), partial(self._stop, key), request)
        streams = [self._streams[key] for key in keys]
        try:
            for stream in streams:
                await stream.accepted()
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        return streams

    def receive(self, message: Event) -> None:
        """Pass an event to its stream, unless the reader has left."""
        stream = self._streams.get(message.key)
        if stream is None:
            return
        match message:
            case Tokens():
                stream.deliver(message.tokens, message.logprobs)
                return
            case Accepted():
                stream.accept()
                return
            case PromptLogprobs():
                stream.deliver_prompt(message.logprobs)
                return
            case Vectors():
                stream.deliver_vectors(message.data)
                return
            case Progress():
                stream.deliver_progress(PromptProgress(message.num_read, message.num_cached))
                return
            case Finished():
                stream.finish(
                    message.reason,
                    message.phases,
                    message.num_cached,
                    message.num_profiled,
                    message.num_drafted,
                    message.num_accepted,
                )
            case Refused() | Failed():
                stream.fail(message.error.to_error())
        del self._streams[message.key]

    def resume(self) -> None:
        """Send the waiting requests to the next engine, which is there now."""
        for key, retry in self._retries.take().items():
            self._streams[key] = retry.stream
            self._send(Submit(key, retry.request))

    def lose(self, death: GenerationFailed) -> None:
        """The engine has gone: requests with a token fail. The others wait for the next engine, if one comes."""
        streams, self._streams = self._streams, {}
        for key, stream in streams.items():
            if isinstance(death, ModelUnloaded) or not self._retries.keep(key, stream):
                stream.fail(death)

    def give_up(self, death: GenerationFailed, *, all: bool) -> None:
        """Fail those that have waited too long for the next engine, or all of them."""
        self._retries.fail(death, all=all)

    def _stop(self, key: int) -> None:
        self._send(Stop(key))

    def _leave(self, key: int) -> None:
        """End the request of a reader that has left."""
        self._retries.forget(key)
        if self._streams.pop(key, None) is not None:
            self._send(Cancel(key))


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
    """Requests that lost nothing by the engine's death: each is sent to the next engine, once.

    Owned by the event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By the key under which the engine knows them.
        self._waiting: dict[int, Retry] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, key: int, stream: TokenStream) -> bool:
        """Keep a request for the next engine, unless its answer has begun or it was kept before."""
        request = stream.take_untouched()
        if request is not None:
            self._waiting[key] = Retry(request, stream, self._clock())
        return request is not None

    def forget(self, key: int) -> None:
        """Drop a request whose reader has left."""
        self._waiting.pop(key, None)

    def take(self) -> dict[int, Retry]:
        """Take all out, for the next engine; their deadlines stay where they are."""
        taken, self._waiting = self._waiting, {}
        now = self._clock()
        return {
            key: msgspec.structs.replace(retry, request=retry.request.after(now - retry.since))
            for key, retry in taken.items()
        }

    def fail(self, error: GenaiServerError, *, all: bool) -> None:
        """Fail those that have waited for too long, or all. Those whose deadline has come end with what they have."""
        now = self._clock()
        for key, retry in list(self._waiting.items()):
            waited = now - retry.since
            if retry.is_late(waited):
                del self._waiting[key]
                retry.stream.finish(FinishReason.TIMEOUT, Phases())
            elif all or waited >= PATIENCE:
                del self._waiting[key]
                retry.stream.fail(error)
