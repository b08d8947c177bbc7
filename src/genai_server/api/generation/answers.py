"""The running answers of one request: their pieces, why each ended, and what it took."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from genai_server.answer_parts import Content, Part, ScoredToken, ToolCallCut, ToolCallStart, WholeAnswer
from genai_server.api.generation.loop_share import LoopShare
from genai_server.api.generation.prompts import EchoedPrompt
from genai_server.engine_client.stream import NewTokens, PromptProgress, TokenStream
from genai_server.generation import FinishReason, Sampling
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.usage import Usage
from genai_server.text.answers.answer_text import AnswerText
from genai_server.timing import Stopwatch, Timings

# The outcome of an answer whose client has left.
ABORT = "abort"


class AnswerFigures(Protocol):
    """What log, metrics and traces tell of an answer, or of a result in one piece."""

    @property
    def outcome(self) -> str:
        """How it ended."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens used up to now."""
        ...

    def timings(self) -> Timings:
        """Its timings; known at the end."""
        ...

    def close(self) -> None:
        """Cancel it in the engine if it still runs."""
        ...


class Piece(Struct, frozen=True):
    """The next piece of an answer; never empty."""

    parts: list[Part]
    # Empty unless the request asks for log probabilities.
    tokens: list[ScoredToken]
    # Of reading the prompt, in the form of llama.cpp's `prompt_progress`; then all else is empty.
    progress: JsonObject | None = None

    @property
    def plain_text(self) -> str | None:
        """Its text, if it is nothing but more content."""
        if len(self.parts) != 1 or self.tokens:
            return None
        (part,) = self.parts
        return part.text if type(part) is Content else None


class RunningAnswer:
    """Reads one TokenStream and makes the answer's pieces. Must be closed, which ends the answer if it still runs."""

    def __init__(
        self,
        stream: TokenStream,
        text: AnswerText,
        stopwatch: Stopwatch,
        *,
        echo: EchoedPrompt | None = None,
        tells_progress: bool = False,
    ) -> None:
        # Tool calls up to now, the open one included.
        self._num_calls = 0
        # Comes before the first token; None once it has come.
        self._echo = echo
        self._stream = stream
        self._text = text
        self._stopwatch = stopwatch
        # Whether there is a piece each time that more of the prompt has been read.
        self._tells_progress = tells_progress
        # Tokens of the prompt that have been read.
        self._num_read = 0

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer, token by token. An incomplete character, stop string or marker comes with its last token.

        Raises GenerationFailed after the pieces before the failure, but never after a stop string.
        """
        share = LoopShare()
        while (new := await self._next_tokens(share)) is not None:
            if new.progress is not None:
                self._num_read = new.progress.num_read
                if self._tells_progress:
                    yield Piece([], [], self._progress(new.progress))
            for index, token in enumerate(new.tokens):
                self._stopwatch.count(1)
                parts, tokens = self._text.feed(token, new.logprobs[index] if new.logprobs else None)
                if parts or tokens:
                    yield self._piece(parts, tokens) if self._echo is None else await self._echoed(parts, tokens)
                if self._text.is_stopped:
                    break
            if self._text.is_stopped:
                # Nothing is read after this: a complete answer does not fail if its engine dies now.
                await self._stream.stop()
                break
        self._stopwatch.stop()
        parts, tokens = self._text.finish()
        if self._echo is not None:
            yield await self._echoed(parts, tokens)
        elif parts or tokens:
            yield self._piece(parts, tokens)

    async def _next_tokens(self, share: LoopShare) -> NewTokens | None:
        """What the engine sends next; None at the end."""
        if self._stream.has_items:
            await share.give_way()
        else:
            await self._stream.wait()
            share.renew()
        return self._stream.take()

    @property
    def reason(self) -> FinishReason:
        """Why the answer has ended."""
        if self._text.is_stopped:
            return FinishReason.STOP
        assert self._stream.reason is not None, "pieces() has not ended yet"
        return self._stream.reason

    @property
    def calls_tools(self) -> bool:
        """Whether there has been a tool call; one that was cut does not count."""
        return self._num_calls > 0

    @property
    def is_cut(self) -> bool:
        """Whether the answer has ended before the model's end of it."""
        return self._stream.reason is not None and self.reason is not FinishReason.STOP

    @property
    def is_ended(self) -> bool:
        """Whether the engine has ended the answer."""
        return self._stream.is_ended

    @property
    def outcome(self) -> str:
        """How the answer ended: its finish reason, its error's code, or `abort` if the client left first."""
        if self._text.is_stopped or self._stream.reason is not None:
            return self.reason.value
        return self._stream.error_code or ABORT

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._text.stop_string

    @property
    def num_unread(self) -> int:
        """Tokens of the prompt that the engine has not read, as last reported; 0 from the first token on."""
        return 0 if self._stopwatch.has_begun or self.is_ended else self._stopwatch.input_tokens - self._num_read

    @property
    def usage(self) -> Usage:
        """Tokens used up to now. What was cached and drafted is known only at the end."""
        watch, stream = self._stopwatch, self._stream
        # The engine may have been further than the stop string that ended the answer.
        accepted = min(stream.num_accepted, watch.output_tokens)
        return Usage(
            watch.input_tokens,
            watch.output_tokens,
            stream.num_cached,
            self._text.num_reasoning,
            accepted,
            stream.num_drafted - accepted,
        )

    @property
    def num_profiled(self) -> int:
        """How many of its tokens were profiled; known at the end."""
        return self._stream.num_profiled

    def timings(self) -> Timings:
        """The answer's timings; known at the end."""
        return self._stopwatch.timings(self._stream.phases, self._stream.num_produced)

    def end(self) -> None:
        """End the answer at once, from outside. Its reader receives the partial answer."""
        self._stream.finish(FinishReason.STOP, None)
        self._stream.close()

    def close(self) -> None:
        """Cancel the answer in the engine if it still runs."""
        self._stream.close()

    def _progress(self, progress: PromptProgress) -> JsonObject:
        """The form of llama.cpp's `prompt_progress`."""
        return {
            "total": self._stopwatch.input_tokens,
            "cache": progress.num_cached,
            "processed": progress.num_read,
            "time_ms": int(self._stopwatch.since_submission * 1000),
        }

    def _piece(self, parts: list[Part], tokens: list[ScoredToken]) -> Piece:
        for part in parts:
            self._num_calls += type(part) is ToolCallStart
            self._num_calls -= type(part) is ToolCallCut
        return Piece(parts, tokens)

    async def _echoed(self, parts: list[Part], tokens: list[ScoredToken]) -> Piece:
        """The first piece, which begins with the echoed prompt."""
        echo, self._echo = self._echo, None
        assert echo is not None
        scored = await asyncio.to_thread(
            lambda: echo.scored([self._text.scored(logprob, 0) for logprob in self._stream.prompt_logprobs])
        )
        return self._piece([Content(echo.text), *parts], scored + tokens)


def usage_of(answers: Sequence[AnswerFigures], num_per_prompt: int) -> Usage:
    """The tokens of several answers, with those to the same prompt side by side. Each prompt counts once."""
    usages = [answer.usage for answer in answers]
    return Usage(
        prompt=sum(usage.prompt for usage in usages[::num_per_prompt]),
        completion=sum(usage.completion for usage in usages),
        cached=sum(usage.cached for usage in usages[::num_per_prompt]),
        reasoning=sum(usage.reasoning for usage in usages),
        accepted=sum(usage.accepted for usage in usages),
        rejected=sum(usage.rejected for usage in usages),
    )


@dataclass(frozen=True)
class Generation:
    """All answers of one request. Must be closed, which ends those that still run."""

    # The request's id.
    id: str
    # The model's name in answers, with its adapter if it has one.
    model: str
    # Answers to the same prompt stand side by side.
    answers: Sequence[RunningAnswer]
    num_per_prompt: int
    # How tokens are chosen, with every default resolved.
    sampling: Sampling
    # Of the model and how it is served.
    fingerprint: str = ""

    async def pieces(self) -> AsyncIterator[tuple[int, RunningAnswer, Piece | None]]:
        """The pieces of all answers as they come, each with its answer and index; None when that answer has ended.

        Raises GenerationFailed as soon as one answer fails.
        """
        if len(self.answers) == 1:
            async for only in self.answers[0].pieces():
                yield 0, self.answers[0], only
            yield 0, self.answers[0], None
            return
        arrived: asyncio.Queue[tuple[int, Piece | None | Exception]] = asyncio.Queue()
        readers = [asyncio.ensure_future(_read(index, answer, arrived)) for index, answer in enumerate(self.answers)]
        try:
            running, share = len(readers), LoopShare()
            while running:
                await share.give_way()
                index, piece = await arrived.get()
                if isinstance(piece, Exception):
                    raise piece
                running -= piece is None
                yield index, self.answers[index], piece
        finally:
            for reader in readers:
                reader.cancel()

    async def whole(self) -> list[WholeAnswer]:
        """All answers, read to their ends. Raises GenerationFailed."""
        found = [WholeAnswer() for _ in self.answers]
        async for index, answer, piece in self.pieces():
            if piece is not None:
                for part in piece.parts:
                    # A call in which a cut answer ends is shown as far as it goes: the finish reason says so.
                    if type(part) is not ToolCallCut or not answer.is_cut:
                        found[index].add(part)
                found[index].tokens.extend(piece.tokens)
        return found

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of all prompts that have been read, and of how many; None once all have been read."""
        unread = sum(answer.num_unread for answer in self.answers)
        total = sum(answer.usage.prompt for answer in self.answers)
        return (total - unread, total) if unread else None

    def usage(self) -> Usage:
        """Tokens of all answers together."""
        return usage_of(self.answers, self.num_per_prompt)

    def metrics(self) -> dict[str, Any]:
        """The first answer's figures to six digits, in the form of openai_api.schemas.base.Metrics."""
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


async def _read(
    index: int, answer: RunningAnswer, arrived: "asyncio.Queue[tuple[int, Piece | None | Exception]]"
) -> None:
    try:
        async for piece in answer.pieces():
            arrived.put_nowait((index, piece))
        arrived.put_nowait((index, None))
    except Exception as error:  # Generation.pieces raises it
        arrived.put_nowait((index, error))
