"""The requests of one API process that one engine works on, or that wait for its restart."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, groupby
from typing import Protocol

from msgspec import Struct

from genai_server.engine_client.stream import TokenStream
from genai_server.errors import EngineDied, EngineHung, GenerationFailed, ModelUnloaded, NoEngineReady
from genai_server.messages.engine_protocol import Cancel, Event, Stop, Submit, ToEngine
from genai_server.messages.generation_request import FinishReason, GenerationRequest
from genai_server.messages.server_status import EngineState, EngineStatus

# Seconds that a request waits for the restarted engine.
PATIENCE = 30.0


class SendMessages(Protocol):
    """Function that sends messages to the engine: all of them, or none if it raises NoEngineReady because the engine is
    not connected.
    """

    def __call__(self, *messages: ToEngine) -> None: ...


class _Sent(Struct, frozen=True):
    """An answer that was requested from the engine and has not ended."""

    # The reader's end of the answer.
    stream: TokenStream
    # The key of the first answer to the same HTTP request.
    group: int
    # Whether the request has low priority.
    low_priority: bool


class _Waiting(Struct, frozen=True):
    """An answer that had no token yet when its engine died, and waits to be requested again from the restarted engine.
    It fails if that engine dies too.
    """

    request: GenerationRequest
    stream: TokenStream
    group: int
    # When it began to wait, in seconds of the clock of InFlight.
    since: float


class InFlight:
    """The unfinished answers that this process has requested from one engine.

    Each answer has a number, its key, which messages to and from the engine contain. The answers to one HTTP request
    form a group, which is sent as a whole or not at all. Each EngineClient has an InFlight. Used by the event loop's
    thread only.
    """

    def __init__(self, send: SendMessages, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._sent: dict[int, _Sent] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._keys = count()

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting)

    @property
    def num_background(self) -> int:
        """Number of unfinished answers to low-priority requests."""
        sent = sum(one.low_priority for one in self._sent.values())
        return sent + sum(one.request.low_priority for one in self._waiting.values())

    async def submit(self, *requests: GenerationRequest, files: Sequence[object] = ()) -> list[TokenStream]:
        """Send the requests of one group to the engine, and return a stream for each once the engine has accepted all
        of them.

        `files` are objects whose files on disk the engine reads, and which remove these files when they are no longer
        referenced. Each stream keeps a reference until its first token has arrived, because until then the request may
        be sent to a restarted engine. Raises Unavailable with the engine's reason if the engine refuses one of the
        requests, and NoEngineReady if the connection ends. In both cases the other requests of the group are cancelled.
        """
        group = {next(self._keys): request for request in requests}
        self._send(*_submits(group))
        streams = [
            TokenStream(partial(self._leave, key), partial(self._stop, key), request, files)
            for key, request in group.items()
        ]
        for (key, request), stream in zip(group.items(), streams, strict=True):
            self._sent[key] = _Sent(stream, min(group), request.low_priority)
        try:
            for stream in streams:
                await stream.accepted()
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        return streams

    def receive(self, message: Event) -> None:
        """Pass an event from the engine to the stream of its answer. The event is dropped if that stream was closed."""
        sent = self._sent.get(message.key)
        if sent is None:
            return
        sent.stream.receive(message)
        if sent.stream.is_ended:
            del self._sent[message.key]

    def resume(self) -> None:
        """Send the requests that wait for the restarted engine, with the rest of their timeouts.

        Raises NoEngineReady if the connection ends meanwhile. Groups that were not sent go on waiting.
        """
        now = self._clock()
        for _, items in groupby(list(self._waiting.items()), lambda item: item[1].group):
            group = dict(items)
            self._send(*_submits({key: one.request.after(now - one.since) for key, one in group.items()}))
            for key, one in group.items():
                del self._waiting[key]
                self._sent[key] = _Sent(one.stream, one.group, one.request.low_priority)

    def lose(self, error: GenerationFailed) -> None:
        """Handle the end of the connection: answers with a token fail with `error`, all others wait for the restarted
        engine. If the model was unloaded, all answers fail.
        """
        lost, self._sent = self._sent, {}
        for key, sent in lost.items():
            request = None if isinstance(error, ModelUnloaded) else sent.stream.take_untouched()
            if request is None:
                sent.stream.fail(error)
            else:
                self._waiting[key] = _Waiting(request, sent.stream, sent.group, self._clock())

    def give_up(self, error: GenerationFailed, *, all: bool) -> None:
        """Fail the requests that have waited for a restarted engine for PATIENCE seconds; with `all`, every waiting
        request.

        Requests whose timeout has passed meanwhile end regularly, as timed out and without tokens.
        """
        now = self._clock()
        for key, one in list(self._waiting.items()):
            waited = now - one.since
            if one.request.timeout is not None and waited >= one.request.timeout:
                del self._waiting[key]
                one.stream.finish(FinishReason.TIMEOUT)
            elif all or waited >= PATIENCE:
                del self._waiting[key]
                one.stream.fail(error)

    # An engine drops the requests of a lost connection, and `lose` ends their streams.

    def _stop(self, key: int) -> None:
        with suppress(NoEngineReady):
            self._send(Stop(key))

    def _leave(self, key: int) -> None:
        """Cancel the request with the number `key`, whose stream was closed by its reader."""
        self._waiting.pop(key, None)
        if self._sent.pop(key, None) is not None:
            with suppress(NoEngineReady):
                self._send(Cancel(key))


def _submits(group: Mapping[int, GenerationRequest]) -> Iterator[Submit]:
    """Return the messages that request the answers of one group. `group` has the requests by key."""
    last = max(group)
    return (Submit(key, request, more=key != last) for key, request in group.items())


def error_of_loss(device: str, model: str, engines: Sequence[EngineStatus], *, is_supervised: bool) -> GenerationFailed:
    """Return the error for requests whose engine was lost: ModelUnloaded, EngineHung or EngineDied.

    `engines` are the states of the model's engines on the device, as the supervisor reports them; `is_supervised` is
    False if the supervisor has ended.
    """
    if is_supervised and (not engines or any(status.state == EngineState.UNLOADING for status in engines)):
        return ModelUnloaded(f"the model {model} was unloaded")
    if any(status.hung for status in engines):
        return EngineHung(
            f"the engine of device {device} hung for longer than GENAI_STEP_TIMEOUT allows and was killed; "
            "the request was lost"
        )
    return EngineDied(f"the engine of device {device} died; the request was lost")
