"""Runs several engine requests for one HTTP request, one after another or at the same time, and adds up their token
counts and times (`EngineRequests`, `SummedFigures`). Used where one result takes several passes, such as the
transcription of a long recording.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec import structs

from genai_server.engine_client.client import EngineClient
from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import GenaiServerError, QueueFull
from genai_server.generation.dependencies import RequestContext
from genai_server.http.telemetry.request_record import ABORT, AnswerFigures, Usage
from genai_server.messages.engine_protocol import Tokens
from genai_server.messages.generation_request import FinishReason, GenerationRequest, Phases, TokenLogprob
from genai_server.timing import Arrival, Stopwatch, Timings


@dataclass(frozen=True)
class EngineAnswer:
    """Everything that an engine has generated for one engine request: the token ids, the log probability of each, and
    for speech the times of the tokens.
    """

    tokens: list[int]
    # One for each token.
    logprobs: list[TokenLogprob]
    # When each token of the request's alignment begins, in seconds.
    token_times: list[float] = field(default_factory=list)


class SummedFigures(AnswerFigures):
    """The token counts and times of a result that takes several engine requests, added up for log, metrics and traces.
    EngineRequests creates it with the first request and reports to it.
    """

    def __init__(self, arrival: Arrival) -> None:
        # A finish reason or an error's code, once it has ended.
        self.ended_as = ABORT
        # The answers of the current requests.
        self._streams: set[TokenStream] = set()
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
        for stream in self._streams:
            stream.close()

    def begin(self, stream: TokenStream, num_tokens: int) -> None:
        """Record that an engine has accepted a request, whose tokens arrive in `stream`. `num_tokens` tokens of its
        prompt are added to the sum.
        """
        self._streams.add(stream)
        self._stopwatch.input_tokens += num_tokens

    def count(self, num_tokens: int) -> None:
        """Record that `num_tokens` generated tokens have arrived."""
        self._stopwatch.count(num_tokens)

    def end(self, stream: TokenStream, num_counted: int = 0) -> None:
        """Record the end of the request whose tokens arrived in `stream`. Its first `num_counted` prompt tokens, which
        an earlier request has counted, are not added to the number of cached tokens.
        """
        self._stopwatch.stop()
        self._streams.discard(stream)
        if (phases := stream.phases) is None:
            return
        self._cached += max(0, stream.finished.num_cached - num_counted)
        if self._phases is None:
            self._phases = phases
        else:
            decode = self._phases.decode + phases.queue + phases.prefill + phases.decode
            self._phases = structs.replace(self._phases, decode=decode)


class EngineRequests:
    """Runs the engine requests that one HTTP request takes, such as one for each window of a recording. Once an engine
    has accepted the first one, the record of the HTTP request has the sums of their token counts and times. The caller
    must close it.

    `pick` returns the engine for the next requests. All requests about one audio recording go to the same engine,
    because that engine has encoded the audio. `param` is the field of the body that errors name. If `generates` is
    False, the generated tokens are not counted as output of the HTTP request.
    """

    def __init__(
        self,
        context: RequestContext,
        pick: Callable[[], Awaitable[EngineClient]],
        *,
        param: str,
        generates: bool = True,
    ) -> None:
        self._context = context
        self._pick = pick
        self._param = param
        self._generates = generates
        self.deadline = context.deadline
        # Set when an engine has accepted the first request.
        self.accepted = asyncio.Event()
        # The engine of the last request, and the digest of its audio.
        self._engine: EngineClient | None = None
        self._digest = ""
        self._figures: SummedFigures | None = None

    async def run(self, request: GenerationRequest, *, num_counted: int = 0) -> EngineAnswer:
        """Run an engine request to its end and return what the engine has generated, with log probabilities.

        The first `num_counted` tokens of the prompt are left out of the token counts, because an earlier request has
        counted them. If the engine's queue is full, the first request is refused, while later ones wait. Raises
        Unavailable, GenerationFailed, DeadlinePassed and RequestCancelled.
        """
        with self.recording_errors():
            stream = await self._submit(request)
            return await self._read(stream, request, num_counted)

    @contextmanager
    def recording_errors(self) -> Iterator[None]:
        """Context manager that records an error in the block as the outcome of the HTTP request, and passes the error
        on. Nothing is recorded before an engine has accepted the first request.

        A later call of `finish` replaces the outcome.
        """
        try:
            yield
        except GenaiServerError as error:
            if self._figures is not None:
                self._figures.ended_as = error.code
            raise

    async def _read(self, stream: TokenStream, request: GenerationRequest, num_counted: int) -> EngineAnswer:
        figures = self._figures
        if figures is None:
            figures = self._figures = SummedFigures(self._context.record.arrival)
            self._context.record.answered([figures], 1, request)
        figures.begin(stream, len(request.prompt) - num_counted)
        answer = EngineAnswer([], [])
        try:
            async for new in stream:
                if isinstance(new, Tokens):
                    figures.count(len(new.tokens) if self._generates else 0)
                    answer.tokens.extend(new.tokens)
                    answer.logprobs.extend(new.logprobs)
        finally:
            figures.end(stream, num_counted)
            stream.close()
        self.deadline.require_end(stream.reason)
        answer.token_times.extend(stream.finished.token_times)
        return answer

    @property
    def usage(self) -> Usage:
        """The token counts of all engine requests up to now, added up."""
        return Usage(0) if self._figures is None else self._figures.usage

    def finish(self) -> None:
        """Record that the HTTP request has succeeded, in place of an earlier outcome."""
        if self._figures is not None:
            self._figures.ended_as = FinishReason.STOP.value

    def close(self) -> None:
        """Cancel all running engine requests."""
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
                engine.require_capacity(1, [len(request.prompt)], param=self._param, tenant=request.tenant)
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
