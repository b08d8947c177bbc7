"""One running answer: its parts as they come, its finish reason and its timings."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from genai_server.engines.stream import PromptProgress, TokenStream
from genai_server.generation import FinishReason, Phases
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.usage import Usage
from genai_server.parts import Part, ScoredToken, ToolCallStart
from genai_server.text.answer_text import AnswerText
from genai_server.timing import Stopwatch, Timings

# How an answer ends that nobody waits for any more.
ABORT = "abort"


@dataclass(frozen=True)
class Piece:
    """What an answer goes on by, never nothing; the scored tokens only if log probabilities are wanted.

    One with `progress` has nothing else.
    """

    parts: list[Part]
    tokens: list[ScoredToken]
    progress: JsonObject | None = None


class Answer:
    """Reads a TokenStream; whoever has it must `close` it, which ends the generation if it still runs.

    With `tells_progress` there is a piece each time that more of the prompt has been read.
    """

    def __init__(
        self, stream: TokenStream, text: AnswerText, stopwatch: Stopwatch, *, tells_progress: bool = False
    ) -> None:
        self.calls_tools = False
        self._stream = stream
        self._text = text
        self._stopwatch = stopwatch
        self._tells_progress = tells_progress
        self._num_read = 0

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer token by token: a part of a character, of a stop string or of a marker comes with what completes
        it. Raises GenerationFailed, after what came before it.
        """
        async for batch in self._stream:
            if batch.progress is not None:
                self._num_read = batch.progress.num_read
                if self._tells_progress:
                    yield Piece([], [], self._progress(batch.progress))
            for index, token in enumerate(batch.tokens):
                self._stopwatch.count(1)
                parts, tokens = self._text.feed(token, batch.logprobs[index] if batch.logprobs else None)
                if parts or tokens:
                    yield self._piece(parts, tokens)
                if self._text.is_stopped:
                    await self._stream.stop()
                    break
        self._stopwatch.stop()
        parts, tokens = self._text.finish()
        if parts or tokens:
            yield self._piece(parts, tokens)

    @property
    def reason(self) -> FinishReason:
        """Why the answer has ended."""
        if self._text.is_stopped:
            return FinishReason.STOP
        assert self._stream.reason is not None, "pieces() has not ended yet"
        return self._stream.reason

    @property
    def is_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self._stream.is_ended

    @property
    def outcome(self) -> str:
        """How it has ended: its reason, the code of its error, or `abort` if it was left before its end."""
        if self._text.is_stopped or self._stream.reason is not None:
            return self.reason.value
        return self._stream.error_code or ABORT

    @property
    def phases(self) -> Phases:
        """What the engine spent on it; known at the end."""
        return self._stream.phases

    @property
    def first_token(self) -> float | None:
        """When the first token came, by the clock; None if none has."""
        return self._stopwatch.first

    @property
    def stop_string(self) -> str | None:
        """The request's stop string that has ended the answer, if one has."""
        return self._text.stop_string

    @property
    def prompt_tokens(self) -> list[ScoredToken]:
        """The prompt's tokens but the first with their log probabilities, if they are wanted; complete with the first
        piece. Their offsets are not known.
        """
        return [self._text.scored(logprob, 0) for logprob in self._stream.prompt_logprobs]

    @property
    def num_unread(self) -> int:
        """Tokens of the prompt that are still to be read, for all that its reader has heard; 0 once a token came."""
        has_begun = self._stopwatch.first is not None or self.is_ended
        return 0 if has_begun else self._stopwatch.input_tokens - self._num_read

    @property
    def usage(self) -> Usage:
        """What it took up to now; the cached tokens are known at the end only."""
        watch = self._stopwatch
        return Usage(watch.input_tokens, watch.output_tokens, self._stream.num_cached, self._text.num_reasoning)

    @property
    def num_profiled(self) -> int:
        """How many of its tokens were profiled, once it has ended."""
        return self._stream.num_profiled

    def timings(self) -> Timings:
        """The figures, once the answer has ended."""
        return self._stopwatch.timings(self._stream.phases.decode)

    def end(self) -> None:
        """End it at once, from elsewhere: whoever reads it gets no more than what has come."""
        self._stream.finish(FinishReason.STOP, Phases())
        self._stream.close()

    def close(self) -> None:
        """Leave; to be called in any case."""
        self._stream.close()

    def _progress(self, progress: PromptProgress) -> JsonObject:
        """How far the prompt is, in the words of llama.cpp's server."""
        return {
            "total": self._stopwatch.input_tokens,
            "cache": progress.num_cached,
            "processed": progress.num_read,
            "time_ms": int(self._stopwatch.elapsed * 1000),
        }

    def _piece(self, parts: list[Part], tokens: list[ScoredToken]) -> Piece:
        self.calls_tools = self.calls_tools or any(isinstance(part, ToolCallStart) for part in parts)
        return Piece(parts, tokens)


def usage_of(answers: Sequence[Answer], num_per_prompt: int) -> Usage:
    """Of several answers, those to the same prompt side by side: a prompt counts once, however many there are to it."""
    usages = [answer.usage for answer in answers]
    return Usage(
        prompt=sum(usage.prompt for usage in usages[::num_per_prompt]),
        completion=sum(usage.completion for usage in usages),
        cached=sum(usage.cached for usage in usages[::num_per_prompt]),
        reasoning=sum(usage.reasoning for usage in usages),
    )
