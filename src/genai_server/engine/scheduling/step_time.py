"""Estimates the durations of forward passes and the lengths of answers from recent ones (`StepTimeModel`). The
scheduler computes from these how many tokens of a prompt to read in a pass, how long drafts may be, and how long a full
queue stays full.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

# A chunk of a prompt may take this many times as long as the step's decoding. A running stream's tokens then take about
# four times as long. The prompt takes 4/3 of its time alone, plus the overhead of small chunks.
PROMPT_SHARE = 3.0
# Smaller chunks would cost the prompt more than they give the others, because each pass reads all weights. A lone
# stream waits about 50 ms for such a chunk, with a model of 0.4 B parameters on two cores.
MIN_CHUNK = 16
# Weight of the newest answer in the average of their lengths.
_WEIGHT = 0.3
# Measurements of the same thing that are kept, and passes after which they are too old.
_KEPT, _MAX_AGE = 5, 256
# Passes after which measurements count half where those of other lengths contradict them.
_HALF_LIFE = 16
# What a further token costs before passes of more tokens are measured, as a share of a pass of one token.
_SHARE_PER_TOKEN = 0.2
# How much slower a pass may become by tokens of low-priority sequences, as a share of its time; their maximum number.
_MAX_SLOWDOWN, _MAX_LOW_PRIORITY_TOKENS = 0.03, 64
# Maximum number of tokens of a pass with drafts: longer ones take as much time for each token as a prompt.
MAX_DRAFTED = 64


def _median(values: Iterable[float]) -> float:
    """Return the median of `values`; 0 if there are none. If two values are in the middle, the lower one is returned.

    The lower one is used because passes that were disturbed are slow, and a single one must not count.
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0


def _per_token(number: int, seconds: float) -> float:
    """Return the seconds by which one more token is assumed to prolong a pass of `number` tokens that took `seconds`
    seconds.
    """
    return _SHARE_PER_TOKEN * seconds / (1 + _SHARE_PER_TOKEN * (number - 1))


class StepTimeModel:
    """Measured durations in seconds of recent forward passes, by their numbers of tokens, and the average length of
    recent answers. The scheduler records both and asks for estimates.

    `passes` has the seconds of decoding passes in the warm-up, by their numbers of tokens, and `prompt_token` the
    seconds for one token of a prompt. These are used until passes are measured. For numbers of tokens that have not
    been measured, `passes` is used after that, too, because other kernels may run for them.
    """

    def __init__(self, passes: Mapping[int, float] | None = None, prompt_token: float = 0.0) -> None:
        self._tried = dict(sorted((passes or {}).items()))
        self._tried_prompt_token = prompt_token
        self._decoding = 0.0  # seconds of decoding in this round up to now
        self._per_round: deque[float] = deque(maxlen=_KEPT)  # seconds of decoding in a round
        self._prompts: deque[float] = deque(maxlen=_KEPT)  # seconds for a token of a prompt
        self._passes: dict[int, deque[float]] = {}  # seconds of a pass, by its number of tokens
        self._last: dict[int, int] = {}  # by the same, the number of the last such pass
        self._num_passes = 0
        # Of the curve: numbers of tokens, and seconds, both in ascending order; None until they are needed again.
        self._points: tuple[list[int], list[float]] | None = None
        self._answer: float | None = None  # tokens of an answer; None before the first one

    def begin_round(self) -> None:
        """Begin a new round of steps, in which every running sequence gets its turn. The time that the last round spent
        on decoding is recorded as the time in which each answer gets one more token.
        """
        if self._decoding:
            self._per_round.append(self._decoding)
        self._decoding = 0.0

    def passed(self, num_decoded: int, num_tokens: int, seconds: float) -> None:
        """Record that a pass of `num_tokens` tokens took `seconds` seconds.

        `num_decoded` of these tokens belong to answers and their drafts, the others to prompts.
        """
        decoding = seconds
        if num_prompt := num_tokens - num_decoded:
            estimated = self.seconds(num_decoded) or seconds * num_decoded / num_tokens
            decoding = min(seconds, estimated) if num_decoded else 0.0
            self._prompts.append((seconds - decoding) / num_prompt)
        else:
            self._num_passes += 1
            self._passes.setdefault(num_tokens, deque(maxlen=_KEPT)).append(seconds)
            self._last[num_tokens] = self._num_passes
            for number in [number for number, last in self._last.items() if self._num_passes - last >= _MAX_AGE]:
                del self._passes[number], self._last[number]
            self._points = None
        self._decoding += decoding

    @property
    def is_measured(self) -> bool:
        """Whether the time of any decoding pass is known, from the warm-up or from a later measurement."""
        return bool(self._passes or self._tried)

    @property
    def _known(self) -> tuple[list[int], list[float]]:
        if self._points is None:
            self._points = self._fit()
        return self._points

    def _fit(self) -> tuple[list[int], list[float]]:
        """Return a curve that gives the seconds of a decoding pass for its number of tokens, as points: the numbers of
        tokens, and the seconds, both in ascending order.

        The points are measured passes and, for other numbers of tokens, passes of the warm-up. If measurements say that
        a pass of more tokens takes less time, all passes that contradict each other get their mean, in which many and
        recent measurements have more weight. Passes of the warm-up are assumed to have become slower or faster by the
        same factor as measured passes of about as many tokens. As something may have slowed the warm-up, such a pass
        gets at most the time of the next shorter measured pass, increased by what each further token usually takes.
        """
        blocks: list[tuple[float, float, list[int]]] = []  # seconds of one pass, weight, and numbers of tokens
        for number in sorted(self._passes):
            recent = self._passes[number]
            weight = len(recent) * 0.5 ** ((self._num_passes - self._last[number]) / _HALF_LIFE)
            seconds, numbers = _median(recent), [number]
            while blocks and blocks[-1][0] > seconds:
                before, more, smaller = blocks.pop()
                seconds = (more * before + weight * seconds) / (more + weight)
                weight, numbers = more + weight, [*smaller, *numbers]
            blocks.append((seconds, weight, numbers))
        times = {number: seconds for seconds, _, numbers in blocks for number in numbers}
        if self._tried:
            measured = list(times)
            tried = np.interp(measured, list(self._tried), list(self._tried.values()))
            ratios = [times[number] / float(each) for number, each in zip(measured, tried, strict=True)]
            for number, seconds in self._tried.items():
                now = seconds * float(np.interp(number, measured or [1], ratios or [1.0]))
                below = max((each for each in measured if each < number), default=0)
                usual = times[below] + (number - below) * _per_token(below, times[below]) if below else now
                times.setdefault(number, min(now, usual))
        numbers = sorted(times)
        return numbers, [float(value) for value in np.maximum.accumulate([times[number] for number in numbers] or [0])]

    def seconds(self, num_tokens: int) -> float:
        """Estimate the seconds of a pass that only decodes and reads `num_tokens` tokens; 0 before any measurement."""
        return self.curve(num_tokens)[-1]

    def curve(self, num_tokens: int) -> list[float]:
        """Estimate the seconds of passes that only decode, and return them as a list: the item with the index i is for
        a pass of i tokens, from 0 to `num_tokens`. All items are 0 before any measurement.

        The estimates never decrease, however uneven the measurements are.
        """
        measured, times = self._known
        if not measured:
            return [0.0] * (num_tokens + 1)
        numbers = np.arange(num_tokens + 1)
        seconds = np.interp(numbers, measured, times)
        if num_tokens > measured[-1]:
            slope = _per_token(measured[-1], times[-1])
            if len(measured) > 1:
                slope = (times[-1] - times[0]) / (measured[-1] - measured[0])
            seconds[measured[-1] :] = times[-1] + slope * (numbers[measured[-1] :] - measured[-1])
        return [float(value) for value in seconds]

    def low_priority_tokens(self, num_tokens: int) -> int:
        """Return how many tokens of low-priority sequences may be added to a pass that decodes `num_tokens` tokens of
        other sequences, so that the pass does not become noticeably slower according to the measured times.
        """
        measured, _ = self._known
        if not measured or not measured[0] <= num_tokens < measured[-1]:
            return 0
        curve = self.curve(min(num_tokens + _MAX_LOW_PRIORITY_TOKENS, measured[-1]))
        return sum(seconds <= (1 + _MAX_SLOWDOWN) * curve[num_tokens] for seconds in curve[num_tokens + 1 :])

    def chunk(self, maximum: int, *, decoding: float | None = None, crowd: float = 1.0, target: float = 0.0) -> int:
        """Return how many prompt tokens a step should read in addition to its decoding: at most `maximum`, and before
        any measurement at most MIN_CHUNK.

        `decoding` is the time in seconds that the step's decoding takes; None stands for the decoding in this round so
        far. With a `target`, the whole step may take this number of seconds. With 0, the prompt may take PROMPT_SHARE
        times as long as the decoding, and `crowd` times that if `crowd`, the number of prompts for each decoding
        sequence, is above 1.
        """
        decoding = self._decoding if decoding is None else decoding
        seconds = target - decoding if target else PROMPT_SHARE * max(1.0, crowd) * decoding
        return min(maximum, max(MIN_CHUNK, int(self.tokens_read_in(seconds))))

    def tokens_read_in(self, seconds: float) -> float:
        """Return how many prompt tokens the model is estimated to read in `seconds` seconds; 0 before any
        measurement.
        """
        per_token = self.seconds_to_read(1)
        return seconds / per_token if per_token else 0.0

    def answered(self, num_tokens: int) -> None:
        """Record that an answer has ended with `num_tokens` tokens. Recent answers have more weight in the average
        length.
        """
        self._answer = num_tokens if self._answer is None else (1 - _WEIGHT) * self._answer + _WEIGHT * num_tokens

    def seconds_to_read(self, num_tokens: int) -> float:
        """Estimate the seconds that the model takes to read `num_tokens` prompt tokens; 0 before any measurement."""
        return num_tokens * (_median(self._prompts) or self._tried_prompt_token)

    def seconds_to_decode(self, num_tokens: float) -> float:
        """Estimate the seconds until an answer has `num_tokens` more tokens while the other running answers continue,
        too; 0 before any measurement.
        """
        return num_tokens * _median(self._per_round)

    def tokens_left(self, num_produced: int) -> float:
        """Estimate how many more tokens an answer will get that has `num_produced` tokens now: at least 1, and infinite
        before any answer has ended.
        """
        return math.inf if self._answer is None else max(1.0, self._answer - num_produced)
