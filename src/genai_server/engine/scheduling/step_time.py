"""Learns how long steps and answers take, and sizes the chunks of prompts by it.

A step's time is shared between the decoding sequences and the prompt that is read.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Self

import numpy as np

from genai_server.engine.abilities import Abilities

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
# How much slower a pass may become by tokens of background sequences, as a share of its time.
_MAX_SLOWDOWN = 0.03
# Maximum number of these tokens.
_MAX_BESIDE = 64
# One of this number of passes has none of these tokens, and one has more than are expected to fit. So both are
# measured, and the share of slower passes is far below what a 95th percentile shows.
_TRIAL_EVERY = 128
# Maximum number of tokens of a pass with drafts: longer ones take as much time for each token as a prompt.
MAX_DRAFTED = 64


class _Recent:
    """The last measurements of one thing."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_KEPT)
        self.last = 0  # the number of the pass that was measured last

    def add(self, value: float, number: int = 0) -> None:
        """Add what the pass of this number has taken."""
        self._values.append(value)
        self.last = number

    def __len__(self) -> int:
        return len(self._values)

    @property
    def median(self) -> float:
        """The median, or the lower one of two: disturbed passes are slow, and a single one must not count."""
        return sorted(self._values)[(len(self._values) - 1) // 2] if self._values else 0.0


class StepTimeModel:
    """Medians of the seconds that recent steps took, and the average number of tokens of answers.

    `passes` are the seconds of decoding passes of some numbers of tokens at the start of the engine, and `prompt_token`
    those for a token of a prompt. They count until passes are measured. Passes of numbers that were not measured count
    longer: where kernels change with that number, passes of few tokens do not tell what those of many take.
    """

    def __init__(self, passes: Mapping[int, float] | None = None, prompt_token: float = 0.0) -> None:
        self._tried = sorted((passes or {}).items())
        self._tried_prompt_token = prompt_token
        self._decoding = 0.0  # seconds of decoding in this round up to now
        self._per_round = _Recent()  # seconds of decoding in a round
        self._prompts = _Recent()  # seconds for a token of a prompt
        self._passes: dict[int, _Recent] = {}  # seconds of a pass, by its number of tokens
        # Such numbers, and the seconds in ascending order.
        self._known: tuple[list[int], list[float]] = self._with_tried([], [])
        self._num_passes = 0
        self._answer: float | None = None  # tokens of an answer; None before the first one
        self._num_beside = 0  # passes beside which background sequences might have read

    @classmethod
    def tried(cls, can: Abilities) -> Self:
        """What is known of a runner's passes at the start."""
        return cls(can.tried_passes, can.tried_prompt_token)

    def begin_round(self) -> None:
        """Start a new round, and learn how long the last one's decoding took."""
        if self._decoding:
            self._per_round.add(self._decoding)
        self._decoding = 0.0

    def passed(self, num_decoded: int, num_tokens: int, seconds: float) -> None:
        """Learn how long a pass of `num_tokens` took, of which `num_decoded` belong to answers and their drafts."""
        decoding = seconds
        if num_prompt := num_tokens - num_decoded:
            estimated = self.seconds(num_decoded) or seconds * num_decoded / num_tokens
            decoding = min(seconds, estimated) if num_decoded else 0.0
            self._prompts.add((seconds - decoding) / num_prompt)
        else:
            self._num_passes += 1
            self._passes.setdefault(num_tokens, _Recent()).add(seconds, self._num_passes)
            self._passes = {n: r for n, r in self._passes.items() if self._num_passes - r.last < _MAX_AGE}
            self._known = self._with_tried(*_ascending(self._passes, self._num_passes))
        self._decoding += decoding

    def _with_tried(self, numbers: list[int], times: list[float]) -> tuple[list[int], list[float]]:
        """Complete passes, of these numbers of tokens and seconds, by those at the start of other numbers.

        They are taken to be as much slower or faster now as measured passes of about as many tokens.
        """
        if not self._tried:
            return numbers, times
        tried_numbers, tried_times = zip(*self._tried, strict=True)
        known = dict(zip(numbers, times, strict=True))
        ratios = np.array(times) / np.interp(numbers, tried_numbers, tried_times) if numbers else np.ones(1)
        for number, seconds in self._tried:
            known.setdefault(number, seconds * float(np.interp(number, numbers or [1], ratios)))
        found = sorted(known)
        return found, [float(value) for value in np.maximum.accumulate([known[number] for number in found])]

    def seconds(self, num_tokens: int) -> float:
        """Seconds of a pass that only decodes; 0 before any measurement."""
        return float(self.curve(num_tokens)[-1])

    def curve(self, num_tokens: int) -> list[float]:
        """Seconds of passes that only decode, of 0 to `num_tokens` tokens. All are 0 before any measurement.

        A pass of more tokens never takes less time, however uneven the measurements are.
        """
        known, times = self._known
        if not known:
            return [0.0] * (num_tokens + 1)
        numbers = np.arange(num_tokens + 1)
        found = np.interp(numbers, known, times)
        if num_tokens > known[-1]:
            slope = _SHARE_PER_TOKEN * times[-1] / (1 + _SHARE_PER_TOKEN * (known[-1] - 1))
            if len(known) > 1:
                slope = (times[-1] - times[0]) / (known[-1] - known[0])
            further = numbers[known[-1] :] - known[-1]
            found[known[-1] :] = times[-1] + slope * further
        return [float(value) for value in found]

    def has_timed(self, num_tokens: int, within: int = _MAX_AGE) -> bool:
        """Whether one of the last `within` passes only decoded this number of tokens."""
        found = self._passes.get(num_tokens)
        return found is not None and self._num_passes - found.last < within

    def tokens_beside(self, num_tokens: int) -> int:
        """How many tokens background sequences may read in a pass that decodes `num_tokens` of others.

        As many as do not make it noticeably slower, by what was measured.
        """
        if not self.has_timed(num_tokens):
            return 0
        curve = self.curve(min(num_tokens + _MAX_BESIDE, max(self._passes)))
        limit = (1 + _MAX_SLOWDOWN) * curve[num_tokens]
        fitting = sum(seconds <= limit for seconds in curve[num_tokens + 1 :])
        self._num_beside += 1
        trial = self._num_beside % _TRIAL_EVERY
        if trial == 0:
            return 0
        return min(_MAX_BESIDE, 2 * fitting + 1) if trial == _TRIAL_EVERY // 2 else fitting

    def chunk(self, most: int, *, decoding: float | None = None, crowd: float = 1.0, target: float = 0.0) -> int:
        """How many tokens of a prompt to read now, at most `most`. At most MIN_CHUNK before any measurement.

        `decoding` is how many seconds the step's decoding takes; None means what this round's decoding took. With a
        `target`, the step may take this number of seconds. Without one, the chunk may take PROMPT_SHARE times the
        decoding, and `crowd` times that if `crowd` is above 1.
        """
        decoding = self._decoding if decoding is None else decoding
        seconds = target - decoding if target else PROMPT_SHARE * max(1.0, crowd) * decoding
        return min(most, max(MIN_CHUNK, int(self.tokens_read_in(seconds))))

    def tokens_read_in(self, seconds: float) -> float:
        """How many tokens of prompts can be read in this time; 0 before any measurement."""
        per_token = self.seconds_to_read(1)
        return seconds / per_token if per_token else 0.0

    def answered(self, num_tokens: int) -> None:
        """Learn how many tokens an answer had."""
        before = num_tokens if self._answer is None else self._answer
        self._answer = (1 - _WEIGHT) * before + _WEIGHT * num_tokens

    def seconds_to_read(self, num_tokens: int) -> float:
        """Seconds to read `num_tokens` of a prompt; 0 before any measurement."""
        return num_tokens * (self._prompts.median or self._tried_prompt_token)

    def seconds_to_decode(self, num_tokens: float) -> float:
        """Seconds for `num_tokens` of an answer while the other answers run; 0 before any measurement."""
        return num_tokens * self._per_round.median

    def tokens_left(self, num_produced: int) -> float:
        """How many more tokens an answer will likely have; infinite before any answer has ended."""
        return math.inf if self._answer is None else max(1.0, self._answer - num_produced)


def _ascending(passes: dict[int, _Recent], num_passes: int) -> tuple[list[int], list[float]]:
    """Passes by their number of tokens, and their seconds: a pass of more tokens never takes less time.

    Where measurements say so, those passes get their mean, in which many and recent measurements count more.
    """
    blocks: list[tuple[float, float, list[int]]] = []  # seconds of one pass, weight, and numbers of tokens
    for number in sorted(passes):
        recent = passes[number]
        weight = len(recent) * 0.5 ** ((num_passes - recent.last) / _HALF_LIFE)
        seconds, numbers = recent.median, [number]
        while blocks and blocks[-1][0] > seconds:
            before, more, smaller = blocks.pop()
            seconds = (more * before + weight * seconds) / (more + weight)
            weight, numbers = more + weight, [*smaller, *numbers]
        blocks.append((seconds, weight, numbers))
    return sorted(passes), [seconds for seconds, _, numbers in blocks for _ in numbers]
