"""Learns how long passes and answers take, and shares the time by it between the sequences that decode and the prompt
that is read.
"""

import math

# A chunk of prompt may take so many times what the round's decoding took. A running stream's tokens then take about
# four times as long, and the prompt 4/3 of its time alone, and what small chunks cost besides.
PROMPT_SHARE = 3.2
# Smaller chunks cost a prompt more than they give the others, for each pass reads all weights; a lone stream waits
# about 50 ms for one with a model of 0.4 B parameters on two cores.
LEAST_CHUNK = 16
# How much the newest measurement counts.
_WEIGHT = 0.3


class StepTimeModel:
    """The seconds of this round's decoding, and, as they were lately, of a round and of a prompt's token, and how many
    tokens an answer had.
    """

    def __init__(self) -> None:
        self._decoding = 0.0
        self._per_round: float | None = None
        self._per_token: float | None = None
        self._answer: float | None = None

    def begin_round(self) -> None:
        """Nothing has been decoded in this round yet."""
        if self._decoding:
            self._per_round = _mean(self._per_round, self._decoding)
        self._decoding = 0.0

    def decoded(self, seconds: float) -> None:
        """A pass of decoding took so long."""
        self._decoding += seconds

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """A pass that read so many tokens of a prompt took so long."""
        self._per_token = _mean(self._per_token, seconds / num_tokens)

    def answered(self, num_tokens: int) -> None:
        """An answer has ended after so many tokens."""
        self._answer = _mean(self._answer, num_tokens)

    def chunk(self, most: int) -> int:
        """How many tokens of a prompt to read now, at most `most`; few as long as nothing has been measured."""
        fitting = PROMPT_SHARE * self._decoding / self._per_token if self._per_token else 0.0
        return min(most, max(LEAST_CHUNK, int(fitting)))

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
