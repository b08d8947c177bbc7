"""Splits the tokens that a model has written for a window into segments, at the timestamps among the tokens, and groups
them into words with times, as in openai/whisper (timing.py, tokenizer.py).
"""

import re
import string
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genai_server.messages.generation_request import TokenLogprob
from genai_server.model_files.speech_and_vision import TIME_PRECISION, SpeechModel

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


# A window of which less than this number of seconds would be complete is taken as a whole. Each window takes a pass of
# the encoder, and timestamps may be only 0.02 s apart.
_MIN_ADVANCE = 1.0
# Seconds. A segment that ends so close to the end of a window that cuts speech may be cut, too.
_AT_END = 0.3


@dataclass(frozen=True)
class Segment:
    """A segment of a transcript. Times are in seconds from the beginning of the recording."""

    start: float
    end: float
    text: str
    # Includes the timestamps around the text.
    tokens: list[int]
    # Where its window begins.
    window_start: float
    temperature: float
    # About the whole window: mean log probability of the tokens, compression ratio of the text, and probability that
    # nobody speaks.
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    # Log probabilities of the text's tokens.
    logprobs: Sequence[TokenLogprob] = ()
    # If they are wanted.
    words: Sequence[Word] = ()


class Span(NamedTuple):
    """The position of a segment in the tokens of its window, and its times in seconds from the beginning of the window.

    The model may have written times that are later than the end of the window.
    """

    first: int
    last: int
    start: float
    end: float


def split(
    tokens: Sequence[int], model: SpeechModel, duration: float, *, is_cut: bool = False
) -> tuple[list[Span], float]:
    """The segments of a window, and how many seconds of the window they cover.

    `duration` is the length of the window in seconds. The next window begins at the end of the last complete segment.
    Text after that segment is therefore left out, unless it reaches the end of the window. If `is_cut`, the window ends
    within speech: text that reaches its end is then not complete, and a word there may be cut.
    """
    first = model.first_timestamp
    is_time = [token >= first for token in tokens]

    def time(index: int, otherwise: float) -> float:
        return (tokens[index] - first) * TIME_PRECISION if is_time[index] else otherwise

    # A segment's end is followed by the next one's beginning.
    ends = [index for index in range(len(tokens) - 1) if is_time[index] and is_time[index + 1]]
    has_end = is_time[-2:] == [False, True]
    if is_cut and has_end and (last := time(len(tokens) - 1, duration)) < duration - _AT_END:
        ends, advance = [*ends, len(tokens) - 1], last
    elif not ends or (has_end and not is_cut):
        # No speech follows the last time, or the text has no other one.
        ends, advance = [*ends, len(tokens) - 1], duration
    else:
        advance = time(ends[-1], duration)
    if advance < min(_MIN_ADVANCE, duration):
        ends, advance = [len(tokens) - 1], duration
    spans, begin = [], 0
    for index in ends if tokens else ():
        end = duration if index == begin else time(index, duration)
        spans.append(Span(begin, index + 1, time(begin, 0.0), end))
        begin = index + 1
    return spans, min(advance, duration)


def compression_ratio(text: str) -> float:
    """The length of a text in bytes divided by its length after compression with zlib. High for a text that repeats
    itself.
    """
    data = text.encode()
    return len(data) / len(zlib.compress(data))
