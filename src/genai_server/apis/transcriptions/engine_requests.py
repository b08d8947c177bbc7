"""The engine requests of one transcription, one after another, and their figures taken together."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec import structs

from genai_server.engine_client.client import EngineClient
from genai_server.engine_client.stream import TokenStream
from genai_server.errors import GenaiServerError, QueueFull
from genai_server.generation.dependencies import RequestContext
from genai_server.http.telemetry.request_record import ABORT, AnswerFigures
from genai_server.http.telemetry.usage import Usage
from genai_server.messages.generation_request import FinishReason, GenerationRequest, Phases, TokenLogprob
from genai_server.messages.protocol import Tokens
from genai_server.timing import Arrival, Stopwatch, Timings


@dataclass(frozen=True)
class EngineAnswer:
    """What an engine has generated for one request."""

    tokens: list[int]
    # One for each token.
    logprobs: list[TokenLogprob]
    # When each token of the request's alignment begins, in seconds.
    token_times: list[float] = field(default_factory=list)


class TranscriptFigures(AnswerFigures):
    """What log, metrics and traces report about a transcription: the sums of its engine requests."""

    def __init__(self, arrival: Arrival) -> None:
        # A finish reason or an error's code, once it has ended.
        self.ended_as = ABORT
        # The answer of the current request, or of the last one.
        self.stream: TokenStream | None = None
        self._stopwatch = Stopwatch(arrival)
        self._cached = 0
        # Waiting and reading before the first token, and all else in the engine. None before the first end.
        self._phases: Phases | None = None

    @property
    def outcome(self) -> str:
        return self.ended_as

    @property
    def usage(self) -> Usage:
        return Usage(self._stopwatch.input_tokens, self._stopwatch.output_tokens, self._cached)

    def timings(self) -> Timings:
        return self._stopwatch.timings(self._phases, self._stopwatch.output_tokens)

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()

    def begin(self, stream: TokenStream, num_tokens: int) -> None:
        """Note that an engine has accepted a request with a prompt of `num_tokens`."""
        self.stream = stream
        self._stopwatch.input_tokens += num_tokens

    def count(self, num_tokens: int) -> None:
        """Note that tokens have arrived."""
        self._stopwatch.count(num_tokens)

    def end(self) -> None:
        """Note the end of the request."""
        self._stopwatch.stop()
        if self.stream is None or (phases := self.stream.phases) is None:
            return
        self._cached += self.stream.finished.num_cached
        if self._phases is None:
            self._phases = phases
        else:
            decode = self._phases.decode + phases.queue + phases.prefill + phases.decode
            self._phases = structs.replace(self._phases, decode=decode)


class EngineRequests:
    """Runs the engine requests of one HTTP request, which is recorded once the first one is accepted.

    `pick` gives the engine for the next window: that which has encoded a window gets all requests for it.
    """

    def __init__(self, context: RequestContext, pick: Callable[[], Awaitable[EngineClient]]) -> None:
        self._context = context
        self._pick = pick
        self.deadline = context.deadline
        # Set when an engine has accepted the first request.
        self.accepted = asyncio.Event()
        # The engine of the last request, and the digest of its window.
        self._engine: EngineClient | None = None
        self._digest = ""
        self._figures: TranscriptFigures | None = None

    async def run(self, request: GenerationRequest) -> EngineAnswer:
        """Run a request to its end, with log probabilities.

        A full queue refuses only the first request; the others wait. Raises Unavailable, GenerationFailed,
        DeadlinePassed and RequestCancelled.
        """
        with self.noting_errors():
            stream = await self._submit(request)
            return await self._read(stream, request)

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Note an error that ends the block: it ends the transcription, too."""
        try:
            yield
        except GenaiServerError as error:
            if self._figures is not None:
                self._figures.ended_as = error.code
            raise

    async def _read(self, stream: TokenStream, request: GenerationRequest) -> EngineAnswer:
        figures = self._figures
        if figures is None:
            figures = self._figures = TranscriptFigures(self._context.record.arrival)
            self._context.record.answered([figures], 1, request)
        figures.begin(stream, len(request.prompt))
        answer = EngineAnswer([], [])
        try:
            async for new in stream:
                if isinstance(new, Tokens):
                    figures.count(len(new.tokens))
                    answer.tokens.extend(new.tokens)
                    answer.logprobs.extend(new.logprobs)
        finally:
            figures.end()
            stream.close()
        self.deadline.require_end(stream.reason)
        answer.token_times.extend(stream.finished.token_times)
        return answer

    @property
    def usage(self) -> Usage:
        """The tokens of all requests."""
        return Usage(0) if self._figures is None else self._figures.usage

    def finish(self) -> None:
        """Note that the transcript is complete."""
        if self._figures is not None:
            self._figures.ended_as = FinishReason.STOP.value

    def close(self) -> None:
        """Cancel the request that runs."""
        if self._figures is not None:
            self._figures.close()

    async def _submit(self, request: GenerationRequest) -> TokenStream:
        deadline = self.deadline
        digest = "" if request.sound is None else request.sound.digest
        if digest != self._digest or self._engine is None or not self._engine.is_connected:
            self._engine, self._digest = await self._pick(), digest
        while True:
            engine = self._engine
            try:
                engine.require_capacity(1, [len(request.prompt)], param="file", tenant=request.tenant)
                (stream,) = await engine.in_flight.submit(structs.replace(request, timeout=deadline.seconds_left))
            except QueueFull as error:
                if self._figures is None:
                    raise
                await asyncio.sleep(min(error.retry_after or 1, deadline.seconds_left))
                if not deadline.seconds_left:
                    deadline.require_end(FinishReason.TIMEOUT)
                self._engine = await self._pick()
            else:
                self.accepted.set()
                return stream
