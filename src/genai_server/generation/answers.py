"""The running answers of a request: their pieces, finish reasons, token usage and timings. An answer that repeats the
same tokens without end is ended.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from genai_server.answer_parts import Content, Part, ScoredToken, ToolCallEnd, WholeAnswer
from genai_server.engine_client.in_flight import TokenStream
from genai_server.generation.prompts import EchoedPrompt
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.request_record import ABORT, AnswerFigures, Usage, usage_of
from genai_server.messages.engine_protocol import Progress, Tokens
from genai_server.messages.generation_request import FinishReason, Sampling
from genai_server.model_files.speech_and_vision import Medium
from genai_server.text.answers.answer_text import AnswerText
from genai_server.timing import Stopwatch, Timings

# Tokens after which a rule that the request has not asked for is applied again.
_EVERY = 16


@dataclass(frozen=True)
class RepetitionRule:
    """The repetition that ends an answer: a sequence of tokens that occurs at least `min_count` times in a row.

    The sequence has `min_pattern` to `max_pattern` tokens, and all its occurrences together at least `min_tokens`.
    """

    # Length in tokens of what is repeated.
    min_pattern: int
    max_pattern: int
    min_count: int
    min_tokens: int = 0

    def applies(self, tokens: Sequence[int]) -> bool:
        """Whether a list of tokens ends with the repetition that this rule describes."""
        for pattern in range(self.min_pattern, self.max_pattern + 1):
            length = max(self.min_count * pattern, self.min_tokens)
            if length > len(tokens):
                return False
            # Most patterns differ at an end.
            fits_at_ends = tokens[-1] == tokens[-1 - pattern] and tokens[-length] == tokens[pattern - length]
            if fits_at_ends and tokens[pattern - length :] == tokens[-length:-pattern]:
                return True
        return False


# What ends thoughts and tool arguments, unless the request has a rule: no useful text repeats so much.
IN_THOUGHTS_AND_CALLS = RepetitionRule(1, 256, 8, min_tokens=512)


class RepetitionDetector:
    """Checks one answer for repetition while it is generated.

    With a rule, which a request may have, the whole answer is checked with this rule. Without one, only reasoning and
    tool calls are checked, with the default rule IN_THOUGHTS_AND_CALLS.
    """

    def __init__(self, rule: RepetitionRule | None) -> None:
        self._rule = rule or IN_THOUGHTS_AND_CALLS
        self._is_asked = rule is not None
        # What is watched, up to now.
        self._tokens: list[int] = []

    def repeats(self, token: int, *, is_within: bool) -> bool:
        """Add the next token of the answer and return whether the answer now repeats itself.

        `is_within` says that the token lies within reasoning or a tool call.
        """
        if not (self._is_asked or is_within):
            self._tokens.clear()
            return False
        self._tokens.append(token)
        if not self._is_asked and len(self._tokens) % _EVERY:
            return False
        return self._rule.applies(self._tokens)


# Seconds after which a task gives way to others on the event loop.
_MAX_SHARE = 0.01


class EventLoopBudget:
    """Limits how long one task may occupy the event loop without letting other tasks run. A task that reads an answer
    has one.

    asyncio suspends a task only while it waits for something. Without this limit, an answer whose tokens arrived faster
    than they were sent occupied the event loop for 2.7 s.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def renew(self) -> None:
        """Record that the task was suspended, so that other tasks could run."""
        self._since = time.perf_counter()

    async def yield_if_due(self) -> None:
        """Let other tasks run if this one has occupied the event loop for more than 10 ms."""
        if time.perf_counter() - self._since > _MAX_SHARE:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


class Piece(Struct, frozen=True):
    """The next part of a running answer: text, reasoning or tool calls, with log probabilities if the request asks for
    them. Or a report of how much of the prompt the engine has read. Never empty.
    """

    parts: list[Part]
    # Empty unless the request asks for log probabilities.
    tokens: list[ScoredToken]
    # Prompt progress in the format of llama.cpp's `prompt_progress`; all other fields are then empty.
    progress: JsonObject | None = None

    @property
    def plain_text(self) -> str | None:
        """The text of the piece if it has nothing but text of the answer proper; otherwise None."""
        if len(self.parts) != 1 or self.tokens:
            return None
        (part,) = self.parts
        return part.text if type(part) is Content else None


@dataclass(frozen=True)
class Ending:
    """How an answer ended. Each API expresses this in its own format."""

    # What ended the generation.
    reason: FinishReason = FinishReason.STOP
    # Whether the answer has tool calls for the client to execute: the model has ended it, and completed every call.
    calls_tools: bool = False
    # Whether the answer has a tool call that the model did not complete. As a rule the answer ended within it.
    has_incomplete_call: bool = False
    # The stop string that ended the answer, if any.
    stop_string: str | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the answer is incomplete."""
        return self.reason is not FinishReason.STOP or self.has_incomplete_call


class Answer(AnswerFigures, Protocol):
    """A running answer, as responses are built from it: the answer of one engine request, or of several with tool calls
    between them. The caller must close it, which cancels it if it still runs.
    """

    def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of the answer as they arrive. Raises GenerationFailed after the pieces before the failure."""

    @property
    def ending(self) -> Ending:
        """How the answer ended. Only valid after the last piece."""

    @property
    def num_unread(self) -> int:
        """Number of prompt tokens not yet processed, as last reported; 0 from the first token on."""

    @property
    def num_profiled(self) -> int:
        """Number of tokens for which ONNX Runtime wrote a profile. Only valid at the end of the answer."""

    def end(self) -> None:
        """End the answer at once. Whoever reads it receives the partial answer."""


class RunningAnswer(Answer):
    """The answer of one engine request: reads the request's TokenStream and turns its tokens into pieces. The caller
    must close it, which cancels it if it still runs.
    """

    def __init__(
        self,
        stream: TokenStream,
        text: AnswerText,
        stopwatch: Stopwatch,
        *,
        echo: EchoedPrompt | None = None,
        reports_progress: bool = False,
        repetition: RepetitionDetector | None = None,
    ) -> None:
        # Whether the answer has complete and incomplete tool calls so far.
        self._calls_tools = self._has_incomplete_call = False
        # Returned before the first token; None afterwards.
        self._echo = echo
        self._stream = stream
        self._text = text
        self._stopwatch = stopwatch
        # Whether to yield a piece whenever more of the prompt has been processed.
        self._reports_progress = reports_progress
        # Number of prompt tokens processed.
        self._num_read = 0
        # Finds out whether the answer repeats itself, None if it may, and whether it does.
        self._repetition = repetition
        self._repeats = False

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of the answer, token by token.

        Incomplete characters are held back until they are complete. So is text that may be the beginning of a stop
        string or of a marker, until it is certain. Raises GenerationFailed after the pieces before the failure, but
        never after a stop string.
        """
        share = EventLoopBudget()
        while (new := await self._next_tokens(share)) is not None:
            if isinstance(new, Progress):
                self._num_read = new.num_read
                if self._reports_progress:
                    yield Piece([], [], self._progress(new))
                continue
            for index, token in enumerate(new.tokens):
                self._stopwatch.count(1)
                parts, tokens = self._text.feed(token, new.logprobs[index] if new.logprobs else None)
                if parts or tokens:
                    yield self._piece(parts, tokens) if self._echo is None else await self._echoed(parts, tokens)
                if self._ends_with(token):
                    break
            if self._is_ended:
                # Stop reading: a complete answer does not fail if its engine dies now.
                await self._stream.stop()
                break
        self._stopwatch.stop()
        parts, tokens = self._text.finish()
        if self._echo is not None:
            yield await self._echoed(parts, tokens)
        elif parts or tokens:
            yield self._piece(parts, tokens)

    async def _next_tokens(self, share: EventLoopBudget) -> Tokens | Progress | None:
        """The engine's next tokens, or its next report of how much of the prompt it has read; None at the end."""
        if self._stream.has_items:
            await share.yield_if_due()
        else:
            await self._stream.wait()
            share.renew()
        return self._stream.take()

    def _ends_with(self, token: int) -> bool:
        """Whether the answer ends with the token `token`, which was just added to the answer's text."""
        if self._repetition is not None:
            self._repeats = self._repetition.repeats(token, is_within=self._text.is_within)
        return self._is_ended

    @property
    def _is_ended(self) -> bool:
        """Whether a stop string or repetition has ended the text. The engine may then still be generating."""
        return self._text.is_stopped or self._repeats

    @property
    def reason(self) -> FinishReason:
        """Why the answer ended."""
        if self._text.is_stopped:
            return FinishReason.STOP
        if self._repeats:
            return FinishReason.REPETITION
        assert self._stream.reason is not None, "pieces() has not ended yet"
        return self._stream.reason

    @property
    def ending(self) -> Ending:
        """How the answer ended. Only valid after the last piece."""
        reason = self.reason
        calls_tools = reason is FinishReason.STOP and self._calls_tools and not self._has_incomplete_call
        return Ending(reason, calls_tools, self._has_incomplete_call, self._text.stop_string)

    @property
    def outcome(self) -> str:
        if self._is_ended or self._stream.reason is not None:
            return self.reason.value
        return self._stream.error_code or ABORT

    @property
    def num_unread(self) -> int:
        """Number of prompt tokens not yet processed, as last reported; 0 from the first token on."""
        if self._stopwatch.has_begun or self._stream.is_ended:
            return 0
        return self._stopwatch.input_tokens - self._num_read

    @property
    def usage(self) -> Usage:
        watch, finished = self._stopwatch, self._stream.finished
        # The engine may have continued beyond the stop string that ended the answer.
        accepted = min(finished.num_accepted, watch.output_tokens)
        return Usage(
            watch.input_tokens,
            watch.output_tokens,
            finished.num_cached,
            self._text.num_reasoning,
            accepted,
            finished.num_drafted - accepted,
        )

    @property
    def num_profiled(self) -> int:
        """Number of tokens for which ONNX Runtime wrote a profile. Only valid at the end of the answer."""
        return self._stream.finished.num_profiled

    def timings(self) -> Timings:
        return self._stopwatch.timings(self._stream.phases, self._stream.num_produced)

    def end(self) -> None:
        """End the answer at once. Whoever reads it receives the partial answer."""
        self._stream.finish(FinishReason.STOP)
        self._stream.close()

    def close(self) -> None:
        self._stream.close()

    def _progress(self, progress: Progress) -> JsonObject:
        """A report of how much of the prompt the engine has read, in the format of llama.cpp's `prompt_progress`."""
        return {
            "total": self._stopwatch.input_tokens,
            "cache": progress.num_cached,
            "processed": progress.num_read,
            "time_ms": int(self._stopwatch.since_submission * 1000),
        }

    def _piece(self, parts: list[Part], tokens: list[ScoredToken]) -> Piece:
        for part in parts:
            if type(part) is ToolCallEnd:
                self._calls_tools |= part.is_complete
                self._has_incomplete_call |= not part.is_complete
        return Piece(parts, tokens)

    async def _echoed(self, parts: list[Part], tokens: list[ScoredToken]) -> Piece:
        """The first piece of an answer to a request with `echo`: the prompt, followed by `parts` and `tokens`, the
        first parts and scored tokens of the answer itself.
        """
        echo, self._echo = self._echo, None
        assert echo is not None
        scored = await asyncio.to_thread(
            lambda: echo.scored([self._text.scored(logprob, 0) for logprob in self._stream.prompt_logprobs])
        )
        return self._piece([Content(echo.text), *parts], scored + tokens)


@dataclass(frozen=True)
class Generation:
    """All answers to a request, as `generate` returns them. The caller must close it, which cancels the answers that
    still run.
    """

    # The model's name in responses, including the adapter if any.
    model: str
    # Answers to the same prompt are adjacent.
    answers: Sequence[Answer]
    num_per_prompt: int
    # Sampling values with all defaults resolved.
    sampling: Sampling
    # Identifies the model and how it is served.
    fingerprint: str = ""
    # Tokens of the prompts' images, or audio.
    num_media_tokens: int = 0
    medium: Medium = Medium.IMAGE

    async def pieces(self) -> AsyncIterator[tuple[int, Answer, Piece | None]]:
        """The pieces of all answers as they arrive, each with the index of its answer and the answer.

        None instead of a piece means that this answer has ended. Raises GenerationFailed as soon as one answer fails.
        """
        if len(self.answers) == 1:
            async for only in self.answers[0].pieces():
                yield 0, self.answers[0], only
            yield 0, self.answers[0], None
            return
        arrived: asyncio.Queue[tuple[int, Piece | None | Exception]] = asyncio.Queue()
        readers = [asyncio.ensure_future(_read(index, answer, arrived)) for index, answer in enumerate(self.answers)]
        try:
            running, share = len(readers), EventLoopBudget()
            while running:
                await share.yield_if_due()
                index, piece = await arrived.get()
                if isinstance(piece, Exception):
                    raise piece
                running -= piece is None
                yield index, self.answers[index], piece
        finally:
            for reader in readers:
                reader.cancel()

    async def whole(self) -> list[WholeAnswer]:
        """Read all answers to their ends and return them in order. Raises GenerationFailed if one of them fails."""
        answers = [WholeAnswer() for _ in self.answers]
        async for index, _, piece in self.pieces():
            if piece is not None:
                for part in piece.parts:
                    answers[index].add(part)
                answers[index].tokens.extend(piece.tokens)
        return answers

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many tokens of all prompts the engine has read, and how many there are in all; None once it has read them
        all.
        """
        unread = sum(answer.num_unread for answer in self.answers)
        total = sum(answer.usage.prompt for answer in self.answers)
        return (total - unread, total) if unread else None

    def usage(self) -> Usage:
        """Total token counts of all answers."""
        tokens = self.num_media_tokens
        total = usage_of(self.answers, self.num_per_prompt)
        return replace(total, audio=tokens) if self.medium is Medium.AUDIO else replace(total, images=tokens)

    def metrics(self) -> dict[str, Any]:
        """Latency and throughput of the first answer, in the format of generation.parameters.base.Metrics, rounded to
        six significant digits.
        """
        answer = self.answers[0]
        profiled = {"profiled_tokens": answer.num_profiled} if answer.num_profiled else {}
        return {**_rounded(msgspec.to_builtins(answer.timings())), "model": self.model, **profiled}

    def close(self) -> None:
        """Close all answers."""
        for answer in self.answers:
            answer.close()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


async def _read(index: int, answer: Answer, arrived: "asyncio.Queue[tuple[int, Piece | None | Exception]]") -> None:
    try:
        async for piece in answer.pieces():
            arrived.put_nowait((index, piece))
        arrived.put_nowait((index, None))
    except Exception as error:  # Generation.pieces raises it
        arrived.put_nowait((index, error))
