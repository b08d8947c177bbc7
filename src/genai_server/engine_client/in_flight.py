"""The unfinished requests that an API process has sent to one engine (`InFlight`), including those that wait for the
engine's restart, and the stream in which the process receives the tokens of each answer (`TokenStream`).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, groupby
from typing import Protocol

from msgspec import Struct

from genai_server.errors import EngineDied, EngineHung, GenaiServerError, GenerationFailed, ModelUnloaded, NoEngineReady
from genai_server.messages.engine_protocol import (
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
from genai_server.messages.generation_request import FinishReason, GenerationRequest, Phases, TokenLogprob
from genai_server.messages.server_status import EngineState, EngineStatus

_UNFINISHED = Finished(0, FinishReason.STOP, Phases())
# Seconds that a request waits for the restarted engine.
PATIENCE = 30.0


class TokenStream:
    """An asynchronous iterator over the tokens of one answer, and over reports of progress while the prompt is read.

    InFlight creates one for each answer and passes it the engine's messages; the code that answers the HTTP request
    reads it. A reader that is slower than the engine receives several batches of tokens as one. If the reader closes
    the stream before the answer ends, the engine cancels the request. Of `finish` and `fail`, which end the stream,
    only the first call has an effect. Only the event loop's thread may use a stream.
    """

    def __init__(
        self,
        on_leave: Callable[[], None],
        on_stop: Callable[[], None] = lambda: None,
        request: GenerationRequest | None = None,
        files: Sequence[object] = (),
    ) -> None:
        # Why the answer ended; None before, and after an error.
        self.reason: FinishReason | None = None
        # The engine's report at the end of the answer; _UNFINISHED before, and if the engine sent none.
        self.finished = _UNFINISHED
        # Log probabilities of the prompt's tokens from the second on; complete when the first batch or the end arrives.
        self.prompt_logprobs: list[TokenLogprob] = []
        self._on_leave = on_leave
        self._on_stop = on_stop
        # The request, in case it must be sent to a restarted engine; None once a token has arrived or it was taken.
        self._request = request
        # Objects whose files the engine reads; referenced until the engine no longer needs the files.
        self._files = files
        self._begun = time.monotonic()
        # What has arrived since the last `take`, as one message.
        self._tokens: Tokens | None = None
        self._progress: Progress | None = None
        # Number of the prompt's tokens that the engine has read, in the largest progress so far.
        self._num_read = 0
        self._vectors: list[bytes] = []
        self._error: GenaiServerError | None = None
        # The future that the only reader waits for.
        self._waiting: asyncio.Future[None] | None = None
        self._accepted = False
        # Tokens that have arrived, including those after the reader has left.
        self.num_produced = 0

    # the engine's side

    def receive(self, message: Event) -> None:
        """Process the engine's next message about this answer, and wake the reader. Vectors and log probabilities of
        the prompt are collected without waking the reader.
        """
        match message:
            case Tokens():
                self._request = None
                self._files = ()
                self.num_produced += len(message.tokens)
                if (earlier := self._tokens) is not None:
                    message = Tokens(message.key, earlier.tokens + message.tokens, earlier.logprobs + message.logprobs)
                self._tokens = message
            case Accepted():
                self._accepted = True
            case Progress():  # a slow reader sees only the latest
                self._progress = self._furthest(message)
            case PromptLogprobs():
                self.prompt_logprobs += message.logprobs
                return
            case Vectors():
                self._vectors.append(message.data)
                return
            case Finished():
                if not self.is_ended:
                    self.finished = message
                self.finish(message.reason)
            case Refused() | Failed():
                self.fail(message.error.to_error())
        self._wake()

    def _furthest(self, progress: Progress) -> Progress | None:
        """Return the report on reading the prompt that the reader is to receive next: `progress`, unless an earlier
        report had more tokens. The progress that a client sees never decreases. None if the reader has received the
        earlier report.

        A prompt is read again from its start after a preemption, and after a restart of the engine.
        """
        if progress.num_read <= self._num_read:
            return self._progress
        self._num_read = progress.num_read
        return progress

    def finish(self, reason: FinishReason) -> None:
        """End the answer without an error. `reason` is the reason that the client receives. Does nothing if the answer
        has ended.
        """
        if not self.is_ended:
            self.reason = reason
            self._files = ()
            self._wake()

    def fail(self, error: GenaiServerError) -> None:
        """End the answer with an error, which the reader receives after the tokens that have arrived. Does nothing if
        the answer has ended.
        """
        if not self.is_ended:
            self._error = error
            self._files = ()
            self._wake()

    def take_unstarted_request(self) -> GenerationRequest | None:
        """Return the request of this answer, so that it can be sent to a restarted engine, and discard what was
        received for it. The request's timeout is reduced by the time since the request was sent.

        Returns None if the answer has ended or a token has arrived, or after an earlier call.
        """
        request, self._request = self._request, None
        if self.is_ended or request is None:
            return None
        self.prompt_logprobs = []
        self._vectors = []
        return request.after(time.monotonic() - self._begun)

    @property
    def phases(self) -> Phases | None:
        """How many seconds each phase of the request took in the engine, as the engine reports at the end; None before
        the end, and if the engine sent no report.
        """
        return None if self.finished is _UNFINISHED else self.finished.phases

    @property
    def error_code(self) -> str | None:
        """The `code` of the error that ended the answer; None if there was no error."""
        return None if self._error is None else self._error.code

    @property
    def is_ended(self) -> bool:
        """Whether the answer has ended, with or without an error, so that no more tokens will arrive."""
        return self.reason is not None or self._error is not None

    # the reader's side

    async def accepted(self) -> None:
        """Wait until the engine has accepted the request. Raises the engine's error if the engine refuses the request
        or the answer fails before.
        """
        while not self._accepted and self.reason is None:
            if self._error is not None:
                raise self._error
            await self._until_woken()

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Tokens | Progress:
        await self.wait()
        if (new := self.take()) is None:
            raise StopAsyncIteration
        return new

    @property
    def has_items(self) -> bool:
        """Whether `take` may be called: tokens or a report of progress have arrived, or the answer has ended."""
        return self._tokens is not None or self._progress is not None or self.is_ended

    async def wait(self) -> None:
        """Wait until there is something to `take`: tokens, progress, or the end of the answer."""
        while not self.has_items:
            await self._until_woken()

    def take(self) -> Tokens | Progress | None:
        """Return the tokens that have arrived since the last call or, first, the newest report on reading the prompt;
        None at the end of the answer. After all tokens, raises the error that ended the answer.

        Must only be called if `has_items` is true.
        """
        if (progress := self._progress) is not None:
            self._progress = None
            return progress
        if (tokens := self._tokens) is not None:
            self._tokens = None
            return tokens
        if self._error is not None:
            raise self._error
        return None

    async def vectors(self) -> bytes:
        """Wait for the end of an embedding or reranking request, and return the vectors or scores of all its texts, one
        after the other, as little-endian float32 numbers. Raises the error that ended the request.
        """
        while not self.is_ended:
            await self._until_woken()
        if self._error is not None:
            raise self._error
        return b"".join(self._vectors)

    async def stop(self) -> None:
        """Ask the engine to end the answer, wait for its final report, and discard tokens that were not taken."""
        if not self.is_ended:
            self._on_stop()
        while not self.is_ended:
            await self._until_woken()
        self._tokens = None

    def close(self) -> None:
        """Release the files of the request, and cancel the request if it still runs. The reader calls this when it no
        longer reads.
        """
        self._files = ()
        on_leave, self._on_leave = self._on_leave, lambda: None
        on_leave()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _until_woken(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting


class SendMessages(Protocol):
    """The type of a function that sends messages to the engine: all of them, or none if it raises NoEngineReady because
    the engine is not connected.
    """

    def __call__(self, *messages: ToEngine) -> None: ...


class _Sent(Struct, frozen=True):
    """An answer that this process has requested from the engine and that has not ended."""

    # The reader's end of the answer.
    stream: TokenStream
    # The key of the first answer to the same HTTP request.
    group: int
    # Whether the request has low priority.
    low_priority: bool


class _Waiting(Struct, frozen=True):
    """An answer of which no token had arrived when its engine died. It waits to be requested again from the restarted
    engine, and fails if that engine dies, too.
    """

    request: GenerationRequest
    stream: TokenStream
    group: int
    # When it began to wait, in seconds of the clock of InFlight.
    since: float


class InFlight:
    """The unfinished answers that this process has requested from one engine, with their streams: sends the requests,
    passes the engine's messages to the streams, and sends requests again after a restart of the engine.

    Each answer has a number, its key, which messages to and from the engine contain. The answers to one HTTP request
    form a group, which is sent as a whole or not at all. Each EngineClient has an InFlight. Only the event loop's
    thread may use it.
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
    def num_low_priority(self) -> int:
        """The number of unfinished answers to low-priority requests."""
        sent = sum(entry.low_priority for entry in self._sent.values())
        return sent + sum(entry.request.low_priority for entry in self._waiting.values())

    async def submit(self, *requests: GenerationRequest, files: Sequence[object] = ()) -> list[TokenStream]:
        """Send requests to the engine, one for each answer to an HTTP request, and return a stream for each of them
        once the engine has accepted all.

        `files` are objects whose files on disk the engine reads, and which remove these files when they are no longer
        referenced. Each stream keeps a reference until its first token has arrived, because until then the request may
        be sent to a restarted engine. Raises Unavailable with the engine's reason if the engine refuses one of the
        requests, and NoEngineReady if the connection ends. In both cases the other requests are cancelled.
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
        """Pass an event from the engine, such as tokens or the end of an answer, to the stream of its answer. The event
        is dropped if that stream was closed.
        """
        sent = self._sent.get(message.key)
        if sent is None:
            return
        sent.stream.receive(message)
        if sent.stream.is_ended:
            del self._sent[message.key]

    def resume(self) -> None:
        """Send the requests that wait for the restarted engine, because a new connection to it exists. Their timeouts
        are shortened by the time that they have waited.

        Raises NoEngineReady if the connection ends meanwhile. Requests that were not sent go on waiting.
        """
        now = self._clock()
        for _, items in groupby(list(self._waiting.items()), lambda item: item[1].group):
            group = dict(items)
            self._send(*_submits({key: waiting.request.after(now - waiting.since) for key, waiting in group.items()}))
            for key, waiting in group.items():
                del self._waiting[key]
                self._sent[key] = _Sent(waiting.stream, waiting.group, waiting.request.low_priority)

    def lose(self, error: GenerationFailed) -> None:
        """Handle the end of the connection to the engine: answers of which a token has arrived fail with `error`, and
        all others wait for the restarted engine. If the model was unloaded (`error` is ModelUnloaded), all answers
        fail.
        """
        lost, self._sent = self._sent, {}
        for key, sent in lost.items():
            request = None if isinstance(error, ModelUnloaded) else sent.stream.take_unstarted_request()
            if request is None:
                sent.stream.fail(error)
            else:
                self._waiting[key] = _Waiting(request, sent.stream, sent.group, self._clock())

    def give_up(self, error: GenerationFailed, *, all: bool) -> None:
        """Fail with `error` the requests that have waited for a restarted engine for PATIENCE seconds; with `all`,
        every waiting request.

        Requests whose timeout has passed meanwhile end without an error and without tokens, with the finish reason
        TIMEOUT.
        """
        now = self._clock()
        for key, waiting in list(self._waiting.items()):
            waited = now - waiting.since
            if waiting.request.timeout is not None and waited >= waiting.request.timeout:
                del self._waiting[key]
                waiting.stream.finish(FinishReason.TIMEOUT)
            elif all or waited >= PATIENCE:
                del self._waiting[key]
                waiting.stream.fail(error)

    # An engine drops the requests of a lost connection, and `lose` ends their streams.

    def _stop(self, key: int) -> None:
        with suppress(NoEngineReady):
            self._send(Stop(key))

    def _leave(self, key: int) -> None:
        """Cancel the request whose answer has the number `key`, because the reader has closed its stream."""
        self._waiting.pop(key, None)
        if self._sent.pop(key, None) is not None:
            with suppress(NoEngineReady):
                self._send(Cancel(key))


def _submits(group: Mapping[int, GenerationRequest]) -> Iterator[Submit]:
    """Return the messages that request the answers of one group (the answers to one HTTP request). `group` has the
    requests by their keys; all messages but the last say that more follow.
    """
    last = max(group)
    return (Submit(key, request, more=key != last) for key, request in group.items())


def error_of_loss(device: str, model: str, engines: Sequence[EngineStatus], *, is_supervised: bool) -> GenerationFailed:
    """Return the error for requests to an engine whose connection was lost: ModelUnloaded, EngineHung or EngineDied.

    `device` and `model` are names for the message. `engines` are the statuses of the model's engines on the device, as
    the supervisor (the process that starts engines) reports them; `is_supervised` is False if the supervisor has ended.
    """
    if is_supervised and (not engines or any(status.state == EngineState.UNLOADING for status in engines)):
        return ModelUnloaded(f"the model {model} was unloaded")
    if any(status.hung for status in engines):
        return EngineHung(
            f"the engine of device {device} hung for longer than GENAI_STEP_TIMEOUT allows and was killed; "
            "the request was lost"
        )
    return EngineDied(f"the engine of device {device} died; the request was lost")
