"""Learns how long steps and answers take, and shares a step's time by it between the sequences that decode and the
prompt that is read.
"""

import math

# A chunk of prompt may take so many times what the step's decoding takes. A running stream's tokens then take about
# four times as long, and the prompt 4/3 of its time alone, and what small chunks cost besides.
PROMPT_SHARE = 3.0
# Smaller chunks cost a prompt more than they give the others, for each pass reads all weights; a lone stream waits
# about 50 ms for one with a model of 0.4 B parameters on two cores.
LEAST_CHUNK = 16
# How much the newest measurement counts.
_WEIGHT = 0.3


class StepTimeModel:
    """What steps took lately, in seconds, and how many tokens an answer had."""

    def __init__(self) -> None:
        self._decoding = 0.0  # of this round's rows up to now
        self._per_round: float | None = None
        self._per_token: float | None = None  # of a prompt
        self._by_rows: dict[int, float] = {}  # of a pass which decodes so many rows
        self._answer: float | None = None  # tokens

    def begin_round(self) -> None:
        """Nothing has been decoded in this round yet."""
        if self._decoding:
            self._per_round = _mean(self._per_round, self._decoding)
        self._decoding = 0.0

    def decoded(self, num_rows: int, seconds: float) -> None:
        """A pass which decodes took so long."""
        self._decoding += seconds
        self._by_rows[num_rows] = _mean(self._by_rows.get(num_rows), seconds)

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """A pass that read so many tokens of a prompt took so long."""
        self._per_token = _mean(self._per_token, seconds / num_tokens)

    def mixed(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """A pass which decodes, and reads so many tokens of a prompt, took so long."""
        decoding = min(seconds, self.seconds_to_step(num_rows) or seconds * num_rows / (num_rows + num_tokens))
        self._decoding += decoding
        self.prefilled(num_tokens, seconds - decoding)

    def seconds_to_step(self, num_rows: int) -> float:
        """What decoding so many rows takes, by the nearest number of rows that was seen; 0 if none was."""
        nearest = min(self._by_rows, key=lambda rows: abs(rows - num_rows), default=None)
        return 0.0 if nearest is None else self._by_rows[nearest]

    def chunk(self, most: int, *, decoding: float | None = None, crowd: float = 1.0, target: float = 0.0) -> int:
        """How many tokens of a prompt to read now, at most `most`; few as long as nothing has been measured.

        The step's decoding takes `decoding` seconds, else what this round's has taken. The step may take `target`
        seconds; without one, PROMPT_SHARE times its decoding for the chunk, and `crowd` times that.
        """
        decoding = self._decoding if decoding is None else decoding
        seconds = target - decoding if target else PROMPT_SHARE * max(1.0, crowd) * decoding
        fitting = seconds / self._per_token if self._per_token else 0.0
        return min(most, max(LEAST_CHUNK, int(fitting)))

    def tokens_read_in(self, seconds: float) -> float:
        """How many tokens of a prompt can be read meanwhile; 0 as long as nothing has been measured."""
        return seconds / self._per_token if self._per_token else 0.0

    def answered(self, num_tokens: int) -> None:
        """An answer has ended after so many tokens."""
        self._answer = _mean(self._answer, num_tokens)

    def seconds_to_read(self, num_tokens: int) -> float:
        """What so many tokens of a prompt take; 0 as long as nothing has been measured."""
        return num_tokens * (self._per_token or 0.0)

    def seconds_to_decode(self, num_tokens: float) -> float:
        """What so many tokens of an answer take beside the others; 0 as long as nothing has been measured."""
        return num_tokens * (self._per_round or 0.0)

    def tokens_left(self, num_produced: int) -> float:
        """How many more an answer of so many tokens will likely have; as many as it may if none has ended yet."""
        return math.inf if self._answer is None else max(1.0, self._answer - num_produced)


def _mean(before: float | None, newest: float) -> float:
    return newest if before is None else (1 - _WEIGHT) * before + _WEIGHT * newest
