"""What a pass gives for a sequence: logits, the best of them, or the token that the runner chose."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from genai_server.errors import RunnerFailed

Logits = NDArray[np.float32]
# How many logits of each position a device returns unasked.
NUM_BEST = 64
# Bound of the relative error of a softmax in 32 bits. Measured on CPUs: up to 0.00028 (AVX2) if all of 250,000 logits
# but one are equal, and a tenth of that for random ones.
SHARE_ERROR = 5e-4


@dataclass(frozen=True)
class Best:
    """The highest logits of positions whose complete logits are on a device."""

    # Logits and tokens [positions, count], highest logit first, then lowest token first.
    logits: Logits
    tokens: NDArray[np.int64]
    # What softmax(scale · logits) over all tokens gives for the highest one [positions], and the scales [positions].
    shares: Logits
    scales: Logits
    # The positions among those of the pass.
    places: range
    # Copies all logits of some of these [positions, vocab_size] from the device. Raises RunnerFailed.
    fetch: Callable[[range], Logits]

    def at(self, some: slice) -> "Best":
        """The best tokens at some of the positions."""
        places, shares, scales = self.places[some], self.shares[some], self.scales[some]
        return Best(self.logits[some], self.tokens[some], shares, scales, places, self.fetch)


@dataclass(frozen=True)
class Scores:
    """What a pass gives for one sequence. Without logits, choice, failure and vectors, it is pending."""

    # Logits [positions, vocab_size] after the last tokens; empty if they are on a device.
    given: Logits = field(default_factory=lambda: np.empty((0, 0), np.float32))
    # The best of them, if they are on a device.
    best: Best | None = None
    # The token chosen by a runner which chooses tokens itself.
    choice: int | None = None
    # Why such a runner failed for this sequence.
    failure: str = ""
    # What a runner which pools gives for each text that was read, float32 [texts, numbers].
    vectors: Logits | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the runner has no result yet."""
        has_logits = self.given.size or self.best is not None
        return not has_logits and self.choice is None and not self.failure and self.vectors is None

    @cached_property
    def logits(self) -> Logits:
        """All logits [positions, vocab_size], copied from the device if they are there."""
        return self.given if self.best is None else self.best.fetch(self.best.places)

    @cached_property
    def last(self) -> Logits:
        """All logits after the last token, copied from the device if they are there."""
        last: Logits = (self.given if self.best is None else self.best.fetch(self.best.places[-1:]))[-1]
        return last

    def at(self, position: int) -> "Scores":
        """The scores after one of the tokens."""
        one = slice(position, position + 1)
        return Scores(self.given[one], self.best and self.best.at(one))

    def copy(self) -> "Scores":
        """The same scores, which no later pass overwrites."""
        return replace(self, given=self.given.copy())

    def chosen(self) -> int | None:
        """The token that the runner chose; None if it gives logits. Raises RunnerFailed with the failure."""
        if self.failure:
            raise RunnerFailed(self.failure)
        return self.choice
