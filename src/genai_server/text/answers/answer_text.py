"""Turns the tokens of an answer into parts (content, reasoning, tool calls) and scored tokens, up to a stop
string.
"""

from collections.abc import Callable, Collection

from genai_server.answer_parts import Content, Part, Reasoning, ScoredToken, ToolCallEnd, ToolCallStart
from genai_server.messages.generation_request import TokenLogprob
from genai_server.text.answers.stop_strings import StopStrings
from genai_server.text.tokenizer import Decoder

# OpenAI's log probability of an impossible token: JSON has no infinity.
_IMPOSSIBLE = -9999.0


class PlainParser:
    """Answer parser that treats all text as content.

    Base class of AnswerParser, which separates the parts of an answer.
    """

    @property
    def is_within(self) -> bool:
        """Whether the text so far ends within reasoning or a tool call."""
        return False

    def feed(self, text: str) -> list[Part]:
        """Parse the next piece of the answer and return the parts that it completes.

        Adjacent parts of one kind are joined.
        """
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """Return the parts that were still held back when the answer ended."""
        return []


class AnswerText:
    """Decodes an answer's tokens, ends the answer at a stop string or before an excess tool call, and separates its
    parts.

    A scored token (a token with log probability) is returned together with the first character of its text, and is
    omitted if a stop string removed that character. With `shows_stop`, the stop string is part of the answer.
    """

    def __init__(
        self,
        decoder: Decoder,
        stop_strings: Collection[str],
        parser: PlainParser,
        token_bytes: Callable[[int], bytes],
        *,
        offset: int = 0,
        max_calls: int | None = None,
        shows_stop: bool = False,
    ) -> None:
        # Whether the text ended before the engine ended the answer.
        self.is_stopped = False
        # Number of tokens that consist of reasoning only.
        self.num_reasoning = 0
        self._decoder = decoder
        self._stop = StopStrings(stop_strings, is_shown=shows_stop) if stop_strings else None
        self._parser = parser
        self._token_bytes = token_bytes
        # Maximum number of complete tool calls; None for any number.
        self._max_calls = max_calls
        self._num_calls = 0
        # Scored tokens without a shown character.
        self._held: list[ScoredToken] = []
        # Number of characters so far, including the echoed prompt.
        self._decoded = self._shown = offset

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> tuple[list[Part], list[ScoredToken]]:
        """Decode the next token of the answer. `logprob` has its log probabilities, if the request asks for them.

        Returns the parts that the token completes, and the scored tokens whose text can be shown now.
        """
        text = self._decoder.decode([token])
        if logprob is not None:
            self._held.append(self.scored(logprob, self._decoded))
        self._decoded += len(text)
        shown = text
        if self._stop is not None:
            shown, self.is_stopped = self._stop.feed(text)
        self._shown += len(shown)
        parts = self._within_calls(self._parser.feed(shown)) if shown else []
        if parts and type(parts[0]) is Reasoning and all(isinstance(part, Reasoning) for part in parts):
            self.num_reasoning += 1
        return parts, self._released() if self._held else []

    def finish(self) -> tuple[list[Part], list[ScoredToken]]:
        """Return the remaining parts and scored tokens when the answer has ended."""
        rest = "" if self.is_stopped or self._stop is None else self._stop.finish()
        self._shown += len(rest)
        parts = self._within_calls((self._parser.feed(rest) if rest else []) + self._parser.finish())
        tokens = self._released() if self.is_stopped else self._held
        self._held = []
        return parts, tokens

    def _within_calls(self, parts: list[Part]) -> list[Part]:
        """Return the parts before the first tool call that exceeds the maximum number of calls."""
        for count, part in enumerate(parts) if self._max_calls is not None else ():
            if isinstance(part, ToolCallStart) and self._num_calls == self._max_calls:
                self.is_stopped = True
                self._parser = PlainParser()  # text held by the parser belongs to the call
                return parts[:count]
            self._num_calls += isinstance(part, ToolCallEnd) and part.is_complete
        return parts

    @property
    def has_parts(self) -> bool:
        """Whether the answer may contain reasoning or tool calls."""
        return type(self._parser) is not PlainParser

    @property
    def is_within(self) -> bool:
        """Whether the text so far ends within reasoning or a tool call."""
        return self._parser.is_within

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if any."""
        return None if self._stop is None else self._stop.found

    def scored(self, logprob: TokenLogprob, offset: int) -> ScoredToken:
        """Convert a token's log probabilities to the form that clients receive.

        `offset` is the position in the answer, in characters, at which the token's text begins.
        """
        top = [ScoredToken(self._token_bytes(token), max(score, _IMPOSSIBLE)) for token, score in logprob.top]
        return ScoredToken(self._token_bytes(logprob.token), max(logprob.logprob, _IMPOSSIBLE), tuple(top), offset)

    def _released(self) -> list[ScoredToken]:
        """Remove and return the held scored tokens whose text begins within the text shown so far."""
        count = next((i for i, token in enumerate(self._held) if token.offset >= self._shown), len(self._held))
        released, self._held = self._held[:count], self._held[count:]
        return released
