"""Splits the tokens that a model has written for a window into segments, at the timestamps among the tokens."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genai_server.apis.transcriptions.words import Word
from genai_server.messages.generation_request import TokenLogprob
from genai_server.model_files.speech_model import TIME_PRECISION, SpeechModel

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
