"""The results of a forward pass for one sequence: logits, or vectors of texts."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
# How many logits of each position a device returns unasked.
NUM_BEST = 64
# Bound of the relative error of a softmax in 32 bits. Measured on CPUs: up to 0.00028 (AVX2) if all of 250,000 logits
# but one are equal, and a tenth of that for random ones.
SHARE_ERROR = 5e-4


@dataclass(frozen=True)
class Best:
    """The highest logits at some positions of a pass. All other logits stay in the memory of a device."""

    # Logits and tokens [positions, count], highest logit first, then lowest token first.
    logits: Logits
    tokens: NDArray[np.int64]
    # What softmax(scale · logits) over all tokens gives for the highest one [positions], and the scales [positions].
    shares: Logits
    scales: Logits
    # The positions among those of the pass.
    positions: range
    # Copies all logits of some of these [positions, vocab_size] from the device. Raises RunnerFailed.
    fetch: Callable[[range], Logits]

    def at(self, some: slice) -> "Best":
        """Return the same for those positions that the slice `some` selects."""
        positions, shares, scales = self.positions[some], self.shares[some], self.scales[some]
        return Best(self.logits[some], self.tokens[some], shares, scales, positions, self.fetch)


@dataclass(frozen=True)
class Scores:
    """Results of a pass for one sequence: logits after the last tokens that it read, or vectors of texts."""

    # Logits [positions, vocab_size] after the last tokens; empty if they are on a device.
    given: Logits = field(default_factory=lambda: np.empty((0, 0), np.float32))
    # The best of them, if they are on a device.
    best: Best | None = None
    # What a runner which pools gives for each text that was read, float32 [texts, numbers].
    vectors: Logits | None = None

    @cached_property
    def logits(self) -> Logits:
        """All logits [positions, vocab_size]. If they are in a device's memory, they are copied when this is first
        read.
        """
        return self.given if self.best is None else self.best.fetch(self.best.positions)

    @cached_property
    def last(self) -> Logits:
        """All logits [vocab_size] after the last token. If they are in a device's memory, they are copied when this is
        first read.
        """
        last: Logits = (self.given if self.best is None else self.best.fetch(self.best.positions[-1:]))[-1]
        return last

    def at(self, position: int) -> "Scores":
        """Return the scores of a single position. Positions are counted from 0."""
        one = slice(position, position + 1)
        return Scores(self.given[one], self.best and self.best.at(one))

    def copy(self) -> "Scores":
        """A copy of the scores, which no later pass overwrites."""
        return replace(self, given=self.given.copy())
