"""The answers to a request while they are generated: `RunningAnswer` turns the tokens of one engine request into pieces
of text, reasoning and tool calls; `Generation` has all answers to an HTTP request; `Ending` says how an answer ended.

`RepetitionDetector` ends an answer that repeats the same tokens without end.
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
    """The repetition that ends an answer: the answer's last tokens are the same sequence of tokens, at least
    `min_count` times in a row.

    The sequence has `min_pattern` to `max_pattern` tokens, and all its occurrences together have at least `min_tokens`
    tokens.
    """

    # Length in tokens of what is repeated.
    min_pattern: int
    max_pattern: int
    min_count: int
    min_tokens: int = 0

    def applies(self, tokens: Sequence[int]) -> bool:
        """Return whether the token ids `tokens` end with the repetition that this rule describes."""
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
    """Finds out, token by token, whether one answer repeats itself, so that it can be ended. Each answer has a detector
    of its own.

    With a `rule`, which the request has set, the whole answer is checked. With None, only reasoning and tool calls are
    checked, by the default rule IN_THOUGHTS_AND_CALLS: a sequence of at most 256 tokens that occurs at least 8 times
    and has at least 512 tokens in all.
    """

    def __init__(self, rule: RepetitionRule | None) -> None:
        self._rule = rule or IN_THOUGHTS_AND_CALLS
        self._is_asked = rule is not None
        # What is watched, up to now.
        self._tokens: list[int] = []

    def repeats(self, token: int, *, is_within: bool) -> bool:
        """Add the id of the answer's next token and return whether the answer now repeats itself.

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
    """Limits how long one asyncio task may occupy the event loop without letting other tasks run. Each task that reads
    answers creates one; it calls `yield_if_due` before each step, and `renew` whenever it has waited for something.

    asyncio suspends a task only while the task waits for something. Without this limit, an answer whose tokens arrived
    faster than they were sent occupied the event loop for 2.7 s.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def renew(self) -> None:
        """Record that the task has just been suspended, so that other tasks could run, and let its 10 ms begin anew."""
        self._since = time.perf_counter()

    async def yield_if_due(self) -> None:
        """Let other tasks run if this task has occupied the event loop for more than 10 ms since it last let them."""
        if time.perf_counter() - self._since > _MAX_SHARE:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


class Piece(Struct, frozen=True):
    """The next part of a running answer: text, reasoning or tool calls, with their log probabilities if the request
    asks for them. Alternatively a report of how much of the prompt the engine has processed, which has no parts. A
    piece is never empty.
    """

    parts: list[Part]
    # Empty unless the request asks for log probabilities.
    tokens: list[ScoredToken]
    # Prompt progress in the format of llama.cpp's `prompt_progress`; all other fields are then empty.
    progress: JsonObject | None = None

    @property
    def plain_text(self) -> str | None:
        """The text of the piece if the piece consists of one text for the user, without log probabilities; None for any
        other piece. Writers of streams use it to treat this frequent case faster.
        """
        if len(self.parts) != 1 or self.tokens:
            return None
        (part,) = self.parts
        return part.text if type(part) is Content else None


@dataclass(frozen=True)
class Ending:
    """How an answer ended: the reason, the stop string if one ended it, and whether the answer has complete or
    incomplete tool calls. Each API expresses this in its own format, such as OpenAI's `finish_reason`.
    """

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
        """Whether the answer is incomplete: it has not ended by itself or at a stop string, or it has an incomplete
        tool call.
        """
        return self.reason is not FinishReason.STOP or self.has_incomplete_call


class Answer(AnswerFigures, Protocol):
    """An answer that is being generated, as the APIs' responses read it. Either one engine request generates it
    (`RunningAnswer`), or several, between which the server runs tools (`ToolLoop`). The caller must close the answer,
    which cancels it if it still runs.
    """

    def pieces(self) -> AsyncIterator[Piece]:
        """Yield the pieces of the answer as they arrive. If the generation fails, the pieces before the failure are
        yielded, then GenerationFailed is raised. May be called only once.
        """

    @property
    def ending(self) -> Ending:
        """How the answer ended. Only valid after `pieces` has yielded the last piece."""

    @property
    def num_unread(self) -> int:
        """Number of prompt tokens that the engine has not yet processed, as it has last reported; 0 from the first
        token of the answer on.
        """

    @property
    def num_profiled(self) -> int:
        """Number of tokens for which ONNX Runtime wrote a profile, which slowed them down. Only valid at the end of the
        answer.
        """

    def end(self) -> None:
        """End the answer at once. Whoever reads `pieces` receives the answer so far, as one that has ended
        regularly.
        """


class RunningAnswer(Answer):
    """The answer of one engine request: reads the request's TokenStream, in which the engine's tokens arrive, and turns
    the tokens into pieces. `generate` creates it. The caller must close it, which cancels the request if it still runs.
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
        """Yield the pieces of the answer, token by token. May be called only once.

        The bytes of an incomplete character are held back until the character is complete. So is text that may be the
        beginning of a stop string, or of a marker such as that of a tool call, until this is decided. Raises
        GenerationFailed after the pieces before the failure, but never after a stop string.
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
        """Wait for the engine's next tokens, or its next report of how much of the prompt it has processed, and return
        them; None at the end of the answer. `share` limits how long the calling task may go on without a pause.
        """
        if self._stream.has_items:
            await share.yield_if_due()
        else:
            await self._stream.wait()
            share.renew()
        return self._stream.take()

    def _ends_with(self, token: int) -> bool:
        """Check for repetition now that `token` has been added to the answer's text, and return whether the answer has
        ended: by a stop string or by repetition.
        """
        if self._repetition is not None:
            self._repeats = self._repetition.repeats(token, is_within=self._text.is_within)
        return self._is_ended

    @property
    def _is_ended(self) -> bool:
        """Whether a stop string or repetition has ended the answer's text. The engine may then still be generating."""
        return self._text.is_stopped or self._repeats

    @property
    def reason(self) -> FinishReason:
        """Why the answer ended, such as at its natural end or at its token limit. Only valid after `pieces` has yielded
        the last piece.
        """
        if self._text.is_stopped:
            return FinishReason.STOP
        if self._repeats:
            return FinishReason.REPETITION
        assert self._stream.reason is not None, "pieces() has not ended yet"
        return self._stream.reason

    @property
    def ending(self) -> Ending:
        """How the answer ended. Only valid after `pieces` has yielded the last piece."""
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
        """Number of prompt tokens that the engine has not yet processed, as it has last reported; 0 from the first
        token of the answer on.
        """
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
        """Number of tokens for which ONNX Runtime wrote a profile, which slowed them down. Only valid at the end of the
        answer.
        """
        return self._stream.finished.num_profiled

    def timings(self) -> Timings:
        return self._stopwatch.timings(self._stream.phases, self._stream.num_produced)

    def end(self) -> None:
        """End the answer at once. Whoever reads `pieces` receives the answer so far, as one that has ended
        regularly.
        """
        self._stream.finish(FinishReason.STOP)
        self._stream.close()

    def close(self) -> None:
        self._stream.close()

    def _progress(self, progress: Progress) -> JsonObject:
        """Convert the engine's report of how much of the prompt it has processed to the format of llama.cpp's
        `prompt_progress`: tokens in total, from the cache and processed, and milliseconds since the request was sent to
        the engine.
        """
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
        """Return the first piece of an answer to a request with `echo`, which repeats the prompt: the prompt, followed
        by `parts` and `tokens`, the first parts and scored tokens of the answer itself. Called once in an answer.
        """
        echo, self._echo = self._echo, None
        assert echo is not None
        scored = await asyncio.to_thread(
            lambda: echo.scored([self._text.scored(logprob, 0) for logprob in self._stream.prompt_logprobs])
        )
        return self._piece([Content(echo.text), *parts], scored + tokens)


@dataclass(frozen=True)
class Generation:
    """All answers to one HTTP request, with what responses say about them: the model's name, its fingerprint, and the
    sampling values. `generate` returns it. The caller must close it, which cancels the answers that still run.
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
        """Yield the pieces of all answers as they arrive: the index of an answer, the answer, and its next piece.

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
        """Read all answers to their ends and return them in the order of `answers`. Raises GenerationFailed if one of
        them fails.
        """
        answers = [WholeAnswer() for _ in self.answers]
        async for index, _, piece in self.pieces():
            if piece is not None:
                for part in piece.parts:
                    answers[index].add(part)
                answers[index].tokens.extend(piece.tokens)
        return answers

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many prompt tokens the engine has processed, and how many all prompts have, summed over the answers; None
        once all are processed.
        """
        unread = sum(answer.num_unread for answer in self.answers)
        total = sum(answer.usage.prompt for answer in self.answers)
        return (total - unread, total) if unread else None

    def usage(self) -> Usage:
        """The token counts of all answers together, in which each prompt and its images or audio count once."""
        tokens = self.num_media_tokens
        total = usage_of(self.answers, self.num_per_prompt)
        return replace(total, audio=tokens) if self.medium is Medium.AUDIO else replace(total, images=tokens)

    def metrics(self) -> dict[str, Any]:
        """Return latency and throughput of the first answer, in the format of generation.parameters.base.Metrics: times
        in seconds and rates in tokens per second, rounded to six significant digits. Only valid once the answer has
        ended.
        """
        answer = self.answers[0]
        profiled = {"profiled_tokens": answer.num_profiled} if answer.num_profiled else {}
        return {**_rounded(msgspec.to_builtins(answer.timings())), "model": self.model, **profiled}

    def close(self) -> None:
        """Close all answers, which cancels those that still run."""
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
