"""Groups the tokens of a transcript into words with times, as in openai/whisper (timing.py, tokenizer.py)."""

import re
import string
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

# Codes of languages whose words are not separated by spaces. Each of their characters counts as a word.
_UNSPACED = {"ja", "lo", "my", "th", "yue", "zh"}
# Punctuation, which is not part of a word and takes no time of its own.
_MARKS = re.escape(string.punctuation + "“”‘’«»„¿¡…。，、！？：；（）「」『』")
_AROUND = re.compile(rf"\A[\s{_MARKS}]+|[\s{_MARKS}]+\Z")

# Seconds. The times of segments are the model's own tokens, and less exact than those of words.
_SLACK = 0.5


class Word(NamedTuple):
    """A word without the punctuation around it. Times are in seconds."""

    text: str
    start: float
    end: float


class _Piece(NamedTuple):
    """The smallest group of consecutive tokens whose bytes are complete characters. `first` and `last` are the
    positions of its tokens in the transcript; `last` is exclusive.
    """

    text: str
    first: int
    last: int

    @property
    def is_mark(self) -> bool:
        return not _AROUND.sub("", self.text)


def words_of(
    tokens: Sequence[int], times: Sequence[float], token_bytes: Callable[[int], bytes], language: str
) -> list[Word]:
    """Group the tokens of a text into words. `times` has the time at which each token begins, and the time at which the
    last token ends, in seconds. In a `language` that writes no spaces between words, each character counts as a word.
    """
    grouped: list[list[_Piece]] = []
    for piece in _pieces([token_bytes(token) for token in tokens]):
        begins = not piece.is_mark if language in _UNSPACED else piece.text[:1].isspace()
        if begins or not grouped:
            grouped.append([])
        grouped[-1].append(piece)
    return [word for pieces in grouped if (word := _word(pieces, times)) is not None]


def bounded(words: Sequence[Word], start: float, end: float) -> list[Word]:
    """The words of a segment, with their times moved to at most half a second outside of the segment's `start` and
    `end`.

    Silence before the first word and after the last word is not counted as part of the words.
    """
    if not words:
        return []
    low, high = start - _SLACK, end + _SLACK
    found = [Word(text, min(max(a, low), high), min(max(b, low), high)) for text, a, b in words]
    first = found[0]
    found[0] = first._replace(start=max(first.start, min(start, first.end)))
    last = found[-1]
    found[-1] = last._replace(end=min(last.end, max(end, last.start)))
    return found


def _word(pieces: Sequence[_Piece], times: Sequence[float]) -> Word | None:
    """The word that consists of these pieces, without punctuation at its ends; None if there is only punctuation."""
    text = _AROUND.sub("", "".join(piece.text for piece in pieces))
    spoken = [piece for piece in pieces if not piece.is_mark]
    return Word(text, times[spoken[0].first], times[spoken[-1].last]) if text and spoken else None


def _pieces(data: Sequence[bytes]) -> Collection[_Piece]:
    found, first, text = [], 0, b""
    for last, part in enumerate(data, 1):
        text += part
        is_complete = last == len(data)
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            decoded = text.decode(errors="replace")
        else:
            is_complete = True
        if is_complete:
            found.append(_Piece(decoded, first, last))
            first, text = last, b""
    return found
