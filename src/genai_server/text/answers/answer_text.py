"""The text of an answer while it is generated: converts tokens to parts and scored tokens, up to a stop string."""

from collections.abc import Callable, Collection

from genai_server.answer_parts import Content, Part, Reasoning, ScoredToken, ToolCallStart
from genai_server.messages.generation_request import TokenLogprob
from genai_server.text.tokenizer import Decoder

# OpenAI's log probability of an impossible token: JSON has no infinity.
_IMPOSSIBLE = -9999.0


class PlainParser:
    """Treats all text as content. Others separate the parts of an answer (text/answers/answer_parser.py)."""

    def feed(self, text: str) -> list[Part]:
        """The parts completed by this text. Adjacent parts of one kind are joined."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """The remaining parts when the answer has ended."""
        return []


class StopStrings:
    """Finds non-empty stop strings in a text that arrives in pieces.

    The first stop string to be complete ends the text; of several that end at the same character, the longest one.
    """

    def __init__(self, strings: Collection[str]) -> None:
        # The stop string that ended the text.
        self.found: str | None = None
        self._searches = [_Search(string) for string in strings]
        # Text held back because it may be the beginning of a stop string.
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that can be shown now, and whether the text ends there."""
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
        """The text that was held back, when no more text follows."""
        rest, self._held = self._held, ""
        return rest


class _Search:
    """Knuth–Morris–Pratt search for one stop string."""

    def __init__(self, string: str) -> None:
        self.string = string
        # Number of the string's first characters that the text so far ends with.
        self.num_matched = 0
        # For each number of matching characters, the next smaller number that also matches.
        self._shorter = [0, 0]
        for character in string[1:]:
            self._shorter.append(self._after(self._shorter[-1], character))

    def advance(self, character: str) -> bool:
        """Process one character; returns whether it completes the string."""
        self.num_matched = self._after(self.num_matched, character)
        return self.num_matched == len(self.string)

    def _after(self, num_matched: int, character: str) -> int:
        while num_matched and self.string[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + 1 if self.string[num_matched] == character else 0


class AnswerText:
    """Decodes tokens, ends the answer at a stop string or before an excess call, and separates its parts.

    A scored token is returned with the first character of its text, so it is omitted if a stop string removed that.
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
    ) -> None:
        # Whether the text ended before the engine ended the answer.
        self.is_stopped = False
        # Number of tokens that consist of reasoning only.
        self.num_reasoning = 0
        self._decoder = decoder
        self._stop = StopStrings(stop_strings)
        self._parser = parser
        self._token_bytes = token_bytes
        # Maximum number of tool calls; None for any number.
        self._max_calls = max_calls
        # Scored tokens without a shown character.
        self._held: list[ScoredToken] = []
        # Number of characters so far, including the echoed prompt.
        self._decoded = self._shown = offset

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> tuple[list[Part], list[ScoredToken]]:
        """The parts completed by this token, and the scored tokens up to there."""
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
        """The remaining parts when the answer has ended."""
        rest = "" if self.is_stopped else self._stop.finish()
        self._shown += len(rest)
        parts = self._within_calls((self._parser.feed(rest) if rest else []) + self._parser.finish())
        tokens = self._released() if self.is_stopped else self._held
        self._held = []
        return parts, tokens

    def _within_calls(self, parts: list[Part]) -> list[Part]:
        """The parts before the first excess call."""
        for count, part in enumerate(parts) if self._max_calls is not None else ():
            if isinstance(part, ToolCallStart) and part.index == self._max_calls:
                self.is_stopped = True
                self._parser = PlainParser()  # text held by the parser belongs to the call
                return parts[:count]
        return parts

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if any."""
        return self._stop.found

    def scored(self, logprob: TokenLogprob, offset: int) -> ScoredToken:
        """Convert a token to the form for clients."""
        top = [ScoredToken(self._token_bytes(token), max(score, _IMPOSSIBLE)) for token, score in logprob.top]
        return ScoredToken(self._token_bytes(logprob.token), max(logprob.logprob, _IMPOSSIBLE), tuple(top), offset)

    def _released(self) -> list[ScoredToken]:
        """Remove and return the held tokens that begin within the shown text."""
        count = next((i for i, token in enumerate(self._held) if token.offset >= self._shown), len(self._held))
        released, self._held = self._held[:count], self._held[count:]
        return released
