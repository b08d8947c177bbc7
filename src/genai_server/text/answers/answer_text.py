"""The text side of one answer while it is made: tokens in, parts and scored tokens out."""

from collections.abc import Callable
from typing import Protocol

from genai_server.generation import TokenLogprob
from genai_server.parts import Content, Part, Reasoning, ScoredToken, ToolCallStart
from genai_server.text.answers.stop import StopStrings
from genai_server.text.tokenizer import Decoder

# OpenAI's word for a token that cannot come: JSON has no infinity.
_IMPOSSIBLE = -9999.0


class Parser(Protocol):
    """Separates what an answer is made of; see text/answers/answer_parser.py."""

    def feed(self, text: str) -> list[Part]:
        """The parts that this text completes."""
        ...

    def finish(self) -> list[Part]:
        """What is left when the answer has ended."""
        ...


class PlainParser:
    """All of the text is content."""

    def feed(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class AnswerText:
    """Decodes tokens, ends the answer at a stop string, and separates its parts.

    A scored token is given out together with the first of its text, so never if a stop string cut it off. Before a call
    beyond `most_calls` the answer is ended, too. `num_reasoning` counts the tokens that were no more than reasoning.
    `offset` are the characters of text before the answer.
    """

    def __init__(
        self,
        decoder: Decoder,
        stop: StopStrings,
        parser: Parser,
        token_bytes: Callable[[int], bytes],
        *,
        offset: int = 0,
        most_calls: int | None = None,
    ) -> None:
        self.is_stopped = False
        self.num_reasoning = 0
        self._decoder = decoder
        self._stop = stop
        self._parser = parser
        self._token_bytes = token_bytes
        self._most_calls = most_calls
        self._held: list[ScoredToken] = []
        self._decoded = self._shown = offset

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> tuple[list[Part], list[ScoredToken]]:
        """The parts that this token completes, and the scored tokens that belong to them or came before."""
        text = self._decoder.decode([token])
        if logprob is not None:
            self._held.append(self.scored(logprob, self._decoded))
        self._decoded += len(text)
        shown, self.is_stopped = self._stop.feed(text)
        self._shown += len(shown)
        parts = self._within_calls(self._parser.feed(shown)) if shown else []
        if parts and all(isinstance(part, Reasoning) for part in parts):
            self.num_reasoning += 1
        return parts, self._released()

    def finish(self) -> tuple[list[Part], list[ScoredToken]]:
        """What is left when the answer has ended."""
        rest = "" if self.is_stopped else self._stop.finish()
        self._shown += len(rest)
        parts = self._within_calls((self._parser.feed(rest) if rest else []) + self._parser.finish())
        tokens = self._released() if self.is_stopped else self._held
        self._held = []
        return parts, tokens

    def _within_calls(self, parts: list[Part]) -> list[Part]:
        """The parts before the first call that is too many."""
        for count, part in enumerate(parts):
            if isinstance(part, ToolCallStart) and part.index == self._most_calls:
                self.is_stopped = True
                self._parser = PlainParser()  # what this one still holds is of the call
                return parts[:count]
        return parts

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the answer."""
        return self._stop.found

    def scored(self, logprob: TokenLogprob, offset: int) -> ScoredToken:
        """A token as it is told to clients."""
        top = [ScoredToken(self._token_bytes(token), max(score, _IMPOSSIBLE)) for token, score in logprob.top]
        return ScoredToken(self._token_bytes(logprob.token), max(logprob.logprob, _IMPOSSIBLE), tuple(top), offset)

    def _released(self) -> list[ScoredToken]:
        """The held tokens that begin within what is shown."""
        if not self._held:
            return []
        count = next((i for i, token in enumerate(self._held) if token.offset >= self._shown), len(self._held))
        released, self._held = self._held[:count], self._held[count:]
        return released
