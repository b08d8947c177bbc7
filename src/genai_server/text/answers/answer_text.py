"""The text of one answer while it is generated: tokens in, parts and scored tokens out, up to a stop string."""

from collections.abc import Callable, Collection
from typing import Protocol

from genai_server.answer_parts import Content, Part, Reasoning, ScoredToken, ToolCallStart
from genai_server.generation import TokenLogprob
from genai_server.text.tokenizer import Decoder

# OpenAI's log probability of an impossible token: JSON has no infinity.
_IMPOSSIBLE = -9999.0


class Parser(Protocol):
    """Separates the parts of an answer; see text/answers/answer_parser.py."""

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


class StopStrings:
    """Finds stop strings, none of which is empty, in a text that comes in pieces, however it is cut.

    The stop string that is complete first ends the text; of several that end at the same character, the longest.
    """

    def __init__(self, strings: Collection[str]) -> None:
        # The one that ended the text.
        self.found: str | None = None
        self._searches = [_Search(string) for string in strings]
        # May be the beginning of a stop string.
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that can be shown now, and whether the whole text ends there."""
        if self.found is not None:
            return "", True
        if not self._searches:
            return text, False
        for n, character in enumerate(text):
            complete = [search.string for search in self._searches if search.advance(character)]
            if complete:
                self.found = max(complete, key=len)
                shown = (self._held + text[: n + 1]).removesuffix(self.found)
                self._held = ""
                return shown, True
        text = self._held + text
        shown = text[: len(text) - max(search.num_matched for search in self._searches)]
        self._held = text[len(shown) :]
        return shown, False

    def finish(self) -> str:
        """What was held back, once nothing more comes."""
        rest, self._held = self._held, ""
        return rest


class _Search:
    """The search of Knuth, Morris and Pratt for one stop string."""

    def __init__(self, string: str) -> None:
        self.string = string
        # Characters of the string with which the text up to here ends.
        self.num_matched = 0
        # For each number of matching characters, the next smaller number that would match as well.
        self._shorter = [0, 0]
        for character in string[1:]:
            self._shorter.append(self._after(self._shorter[-1], character))

    def advance(self, character: str) -> bool:
        """Take one more character; returns whether the string is complete with it."""
        self.num_matched = self._after(self.num_matched, character)
        return self.num_matched == len(self.string)

    def _after(self, num_matched: int, character: str) -> int:
        while num_matched and self.string[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + 1 if self.string[num_matched] == character else 0


class AnswerText:
    """Decodes tokens, ends the answer at a stop string or before a call too many, and separates its parts.

    A scored token is returned with the first character of its text, so never if a stop string cut it off.
    """

    def __init__(
        self,
        decoder: Decoder,
        stop_strings: Collection[str],
        parser: Parser,
        token_bytes: Callable[[int], bytes],
        *,
        offset: int = 0,
        most_calls: int | None = None,
    ) -> None:
        # Whether the text has ended before the engine's end.
        self.is_stopped = False
        # Tokens with reasoning only.
        self.num_reasoning = 0
        self._decoder = decoder
        self._stop = StopStrings(stop_strings)
        self._parser = parser
        self._token_bytes = token_bytes
        # Tool calls of the answer, at most; None for any number.
        self._most_calls = most_calls
        # Scored tokens of which no character has been shown.
        self._held: list[ScoredToken] = []
        # Characters up to here, those of the echoed prompt included.
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
        if parts and type(parts[0]) is Reasoning and all(isinstance(part, Reasoning) for part in parts):
            self.num_reasoning += 1
        return parts, self._released() if self._held else []

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
        for count, part in enumerate(parts) if self._most_calls is not None else ():
            if isinstance(part, ToolCallStart) and part.index == self._most_calls:
                self.is_stopped = True
                self._parser = PlainParser()  # what the parser still holds belongs to the call
                return parts[:count]
        return parts

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the answer."""
        return self._stop.found

    def scored(self, logprob: TokenLogprob, offset: int) -> ScoredToken:
        """A token in the form for clients."""
        top = [ScoredToken(self._token_bytes(token), max(score, _IMPOSSIBLE)) for token, score in logprob.top]
        return ScoredToken(self._token_bytes(logprob.token), max(logprob.logprob, _IMPOSSIBLE), tuple(top), offset)

    def _released(self) -> list[ScoredToken]:
        """Take out the held tokens that begin within the shown text."""
        count = next((i for i, token in enumerate(self._held) if token.offset >= self._shown), len(self._held))
        released, self._held = self._held[:count], self._held[count:]
        return released
