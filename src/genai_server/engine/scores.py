"""The results of a forward pass for one sequence (`Scores`): logits from which the next token is chosen, or vectors of
texts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
# Number of the highest logits at each position that a device always copies to the host.
NUM_BEST = 64
# Bound of the relative error of a softmax in 32 bits. Measured on CPUs: up to 0.00028 (AVX2) if all of 250,000 logits
# but one are equal, and a tenth of that for random ones.
SHARE_ERROR = 5e-4


@dataclass(frozen=True)
class Best:
    """The highest logits at some positions of a pass, copied to the host. All other logits stay in the memory of a
    device, because copying them would take long; `fetch` copies them if they are needed.
    """

    # The highest logits and their tokens, [positions, count]: the highest logit first and, of equal ones, the lowest
    # token id.
    logits: Logits
    tokens: NDArray[np.int64]
    # The softmax of scale · logits over all tokens, at the token with the highest logit [positions]; and the scales
    # [positions].
    shares: Logits
    scales: Logits
    # The indexes of these positions among all positions of the pass.
    positions: range
    # Copies all logits at some positions of the pass, [positions, vocab_size], from the device. Raises RunnerFailed.
    fetch: Callable[[range], Logits]

    def at(self, some: slice) -> "Best":
        """Return the highest logits at those positions only that the slice `some` selects."""
        positions, shares, scales = self.positions[some], self.shares[some], self.scales[some]
        return Best(self.logits[some], self.tokens[some], shares, scales, positions, self.fetch)


@dataclass(frozen=True)
class Scores:
    """Results of a pass for one sequence, which a runner returns: logits after the last tokens that the pass has read,
    or vectors of texts. A position is one of these tokens.
    """

    # The logits [positions, vocab_size] after the last tokens; empty if they are in a device's memory.
    given: Logits = field(default_factory=lambda: np.empty((0, 0), np.float32))
    # The highest logits, if all logits are in a device's memory.
    best: Best | None = None
    # The vector or the score of each text that was read, float32 [texts, numbers]; None for a model that generates
    # text.
    vectors: Logits | None = None

    @cached_property
    def logits(self) -> Logits:
        """All logits [positions, vocab_size]. If they are in a device's memory, they are copied to the host when this
        attribute is first read; RunnerFailed is raised if that fails.
        """
        return self.given if self.best is None else self.best.fetch(self.best.positions)

    @property
    def last(self) -> Logits:
        """All logits [vocab_size] after the last token. If they are in a device's memory, they are copied to the host
        when this attribute is first read; RunnerFailed is raised if that fails.
        """
        last: Logits = self.given[-1] if self.best is None else self._fetched_last
        return last

    @cached_property
    def _fetched_last(self) -> Logits:
        assert self.best is not None
        last: Logits = self.best.fetch(self.best.positions[-1:])[-1]
        return last

    def at(self, position: int) -> "Scores":
        """Return the scores after a single token, the one with the index `position`, counted from 0."""
        single = slice(position, position + 1)
        return Scores(self.given[single], self.best and self.best.at(single))

    def copy(self) -> "Scores":
        """Return a copy of the scores whose logits later passes do not overwrite."""
        return replace(self, given=self.given.copy())
