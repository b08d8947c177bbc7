"""Learns how long steps and answers take, and sizes the chunks of prompts by it.

A step's time is shared between the decoding sequences and the prompt that is read.
"""

import math

# A chunk of a prompt may take this many times as long as the step's decoding. A running stream's tokens then take about
# four times as long. The prompt takes 4/3 of its time alone, plus the overhead of small chunks.
PROMPT_SHARE = 3.0
# Smaller chunks would cost the prompt more than they give the others, because each pass reads all weights. A lone
# stream waits about 50 ms for such a chunk, with a model of 0.4 B parameters on two cores.
MIN_CHUNK = 16
# Weight of the newest measurement in the moving averages.
_WEIGHT = 0.3
# The same for passes of a lone sequence, if it is faster or slower than the average: slow ones are often disturbed.
_WEIGHT_FASTER, _WEIGHT_SLOWER = 0.5, 0.1
# What a further token of such a pass costs before any is measured, as a share of a single one's pass.
_SHARE_PER_TOKEN = 0.2


class StepTimeModel:
    """Moving averages of the seconds that steps take and of the tokens of answers; None before the first one."""

    def __init__(self) -> None:
        self._decoding = 0.0  # seconds of decoding in this round up to now
        self._per_round: float | None = None  # seconds of decoding in a round
        self._per_token: float | None = None  # seconds for a token of a prompt
        self._by_rows: dict[int, float] = {}  # seconds of a decode pass, by its number of rows
        self._lone: dict[int, float] = {}  # seconds of a lone sequence's pass, by its tokens: the newest and a draft
        self._answer: float | None = None  # tokens of an answer

    def begin_round(self) -> None:
        """Start a new round, and learn how long the last one's decoding took."""
        if self._decoding:
            self._per_round = _mean(self._per_round, self._decoding)
        self._decoding = 0.0

    def decoded(self, num_rows: int, seconds: float) -> None:
        """Learn how long a decode pass took."""
        self._decoding += seconds
        self._by_rows[num_rows] = _mean(self._by_rows.get(num_rows), seconds)
        if num_rows == 1:
            self.verified(1, seconds)

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """Learn how long a pass took which read `num_tokens` of a prompt."""
        self._per_token = _mean(self._per_token, seconds / num_tokens)

    def mixed(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Learn how long a pass took which decoded `num_rows` and read `num_tokens` of a prompt."""
        decoding = min(seconds, self.seconds_to_step(num_rows) or seconds * num_rows / (num_rows + num_tokens))
        self._decoding += decoding
        self.prefilled(num_tokens, seconds - decoding)

    def verified(self, num_tokens: int, seconds: float) -> None:
        """Learn how long a pass took which read the newest token of a lone sequence and a draft."""
        before = self._lone.get(num_tokens, seconds)
        weight = _WEIGHT_FASTER if seconds < before else _WEIGHT_SLOWER
        self._lone[num_tokens] = before + weight * (seconds - before)

    def seconds_to_verify(self, num_tokens: int) -> float:
        """Seconds of such a pass over `num_tokens`, estimated from other numbers of tokens; 0 before a pass of one.

        Never less than a pass of one token takes, however uneven the measurements are.
        """
        if (single := self._lone.get(1)) is None:
            return 0.0
        if num_tokens in self._lone:
            return max(single, self._lone[num_tokens])
        before = max(number for number in self._lone if number < num_tokens)
        after = min((number for number in self._lone if number > num_tokens), default=None)
        if after is not None:
            slope = (self._lone[after] - self._lone[before]) / (after - before)
        elif before > 1:
            slope = (self._lone[before] - single) / (before - 1)
        else:
            slope = _SHARE_PER_TOKEN * single
        return max(single, self._lone[before] + slope * (num_tokens - before))

    def seconds_to_step(self, num_rows: int) -> float:
        """Seconds to decode `num_rows` rows, from the nearest number of rows measured; 0 before any measurement."""
        nearest = min(self._by_rows, key=lambda rows: abs(rows - num_rows), default=None)
        return 0.0 if nearest is None else self._by_rows[nearest]

    def chunk(self, most: int, *, decoding: float | None = None, crowd: float = 1.0, target: float = 0.0) -> int:
        """How many tokens of a prompt to read now, at most `most`. At most MIN_CHUNK before any measurement.

        `decoding` is how many seconds the step's decoding takes; None means what this round's decoding took. With a
        `target`, the whole step may take so many seconds. Without one, the chunk may take PROMPT_SHARE times the
        decoding, and `crowd` times that if `crowd` is above 1.
        """
        decoding = self._decoding if decoding is None else decoding
        seconds = target - decoding if target else PROMPT_SHARE * max(1.0, crowd) * decoding
        fitting = seconds / self._per_token if self._per_token else 0.0
        return min(most, max(MIN_CHUNK, int(fitting)))

    def tokens_read_in(self, seconds: float) -> float:
        """How many tokens of prompts can be read in this time; 0 before any measurement."""
        return seconds / self._per_token if self._per_token else 0.0

    def answered(self, num_tokens: int) -> None:
        """Learn how many tokens an answer had."""
        self._answer = _mean(self._answer, num_tokens)

    def seconds_to_read(self, num_tokens: int) -> float:
        """Seconds to read `num_tokens` of a prompt; 0 before any measurement."""
        return num_tokens * (self._per_token or 0.0)

    def seconds_to_decode(self, num_tokens: float) -> float:
        """Seconds for `num_tokens` of an answer beside the other answers; 0 before any measurement."""
        return num_tokens * (self._per_round or 0.0)

    def tokens_left(self, num_produced: int) -> float:
        """How many more tokens an answer will likely have; infinite before any answer has ended."""
        return math.inf if self._answer is None else max(1.0, self._answer - num_produced)


def _mean(before: float | None, newest: float) -> float:
    return newest if before is None else (1 - _WEIGHT) * before + _WEIGHT * newest
