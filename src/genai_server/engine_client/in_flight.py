"""The requests of one API process that are in an engine, or wait for its restart."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count, groupby
from typing import Protocol

import msgspec
from msgspec import Struct

from genai_server.engine_client.stream import PromptProgress, TokenStream
from genai_server.errors import GenaiServerError, GenerationFailed, ModelUnloaded, NoEngineReady
from genai_server.messages.generation_request import FinishReason, GenerationRequest
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

# Seconds that a request waits for the restarted engine.
PATIENCE = 30.0


class SendMessages(Protocol):
    """Sends messages to the engine: all, or none. Raises NoEngineReady if the engine is not there."""

    def __call__(self, *messages: ToEngine) -> None: ...


class _Sent(Struct, frozen=True):
    """An answer that the engine has been asked for."""

    # The reader's end of the answer.
    stream: TokenStream
    # The key of the first answer to the same HTTP request.
    group: int


class InFlight:
    """The streams of all requests, by the key under which the engine knows them. Owned by the event loop.

    The answers to one HTTP request are a group, which is sent as a whole or not at all.
    """

    def __init__(self, send: SendMessages) -> None:
        self._send = send
        self._sent: dict[int, _Sent] = {}
        self._retries = Retries()
        self._keys = count()

    def __len__(self) -> int:
        return len(self._sent) + len(self._retries)

    async def submit(self, *requests: GenerationRequest) -> list[TokenStream]:
        """Send requests together; returns once the engine has accepted them all.

        Raises Unavailable with the engine's reason if it refuses one, and NoEngineReady if the connection is lost. In
        both cases none of them is left here or in the engine.
        """
        group = {next(self._keys): request for request in requests}
        self._send(*_submits(group))
        streams = [
            TokenStream(partial(self._leave, key), partial(self._stop, key), request) for key, request in group.items()
        ]
        self._sent.update((key, _Sent(stream, min(group))) for key, stream in zip(group, streams, strict=True))
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
        sent = self._sent.get(message.key)
        if sent is None:
            return
        stream = sent.stream
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
        del self._sent[message.key]

    def resume(self) -> None:
        """Send the waiting requests to the restarted engine.

        Raises NoEngineReady if the connection is lost again. Groups that were not sent wait for the next engine.
        """
        for group in self._retries.groups():
            self._send(*_submits({key: retry.request for key, retry in group.items()}))
            for key, retry in group.items():
                self._retries.forget(key)
                self._sent[key] = _Sent(retry.stream, retry.group)

    def lose(self, error: GenerationFailed) -> None:
        """Handle the loss of the engine: requests with a token fail. The others wait for the next engine."""
        lost, self._sent = self._sent, {}
        for key, sent in lost.items():
            if isinstance(error, ModelUnloaded) or not self._retries.keep(key, sent.stream, sent.group):
                sent.stream.fail(error)

    def give_up(self, error: GenerationFailed, *, all: bool) -> None:
        """Fail those that have waited too long for the next engine, or all of them."""
        self._retries.fail(error, all=all)

    # An engine drops the requests of a lost connection, and `lose` ends their streams.

    def _stop(self, key: int) -> None:
        with suppress(NoEngineReady):
            self._send(Stop(key))

    def _leave(self, key: int) -> None:
        """End the request of a reader that has left."""
        self._retries.forget(key)
        if self._sent.pop(key, None) is not None:
            with suppress(NoEngineReady):
                self._send(Cancel(key))


def _submits(group: Mapping[int, GenerationRequest]) -> Iterator[Submit]:
    """The messages that ask for the answers of one group, each by its key."""
    last = max(group)
    return (Submit(key, request, more=key != last) for key, request in group.items())


class Retry(Struct, frozen=True):
    """A request that waits for the next engine."""

    request: GenerationRequest
    # The reader's end of its answer.
    stream: TokenStream
    # The key of the first answer to the same HTTP request.
    group: int
    # When it began to wait, by the clock.
    since: float

    def is_late(self, waited: float) -> bool:
        """Whether its deadline has passed after waiting for this number of seconds."""
        return self.request.timeout is not None and waited >= self.request.timeout


class Retries:
    """Requests that lost nothing when the engine died: each is sent once to the next engine.

    Owned by the event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Keyed by the number under which the engine knows them.
        self._waiting: dict[int, Retry] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, key: int, stream: TokenStream, group: int) -> bool:
        """Keep a request for the next engine, unless its answer has begun or it was kept before."""
        request = stream.take_untouched()
        if request is not None:
            self._waiting[key] = Retry(request, stream, group, self._clock())
        return request is not None

    def forget(self, key: int) -> None:
        """Drop a request whose reader has left."""
        self._waiting.pop(key, None)

    def groups(self) -> list[dict[int, Retry]]:
        """The waiting requests by group, each with its remaining time. They stay here until `forget`."""
        now = self._clock()
        left = [
            (key, msgspec.structs.replace(retry, request=retry.request.after(now - retry.since)))
            for key, retry in self._waiting.items()
        ]
        return [dict(group) for _, group in groupby(left, lambda item: item[1].group)]

    def fail(self, error: GenaiServerError, *, all: bool) -> None:
        """Fail those that have waited too long, or all. Those past their deadline end with the tokens so far."""
        now = self._clock()
        for key, retry in list(self._waiting.items()):
            waited = now - retry.since
            if retry.is_late(waited):
                del self._waiting[key]
                retry.stream.finish(FinishReason.TIMEOUT, None)
            elif all or waited >= PATIENCE:
                del self._waiting[key]
                retry.stream.fail(error)
