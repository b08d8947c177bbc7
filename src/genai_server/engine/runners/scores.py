"""What a pass gives for a sequence: logits, the best of them, or the token that the runner chose."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from genai_server.errors import RunnerFailed

Logits = NDArray[np.float32]


def _no_logits() -> Logits:
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Scores:
    """What a pass gives for one sequence. Without logits, choice, failure and vectors, it is pending."""

    # Logits [positions, vocab_size] after the last tokens, or those of `tokens` [1, count].
    logits: Logits = field(default_factory=_no_logits)
    # The best tokens [count], highest logit first, then lowest token first; None if `logits` has all tokens.
    tokens: NDArray[np.int64] | None = None
    # The token chosen by a runner which chooses tokens itself.
    choice: int | None = None
    # Why such a runner failed for this sequence.
    failure: str = ""
    # What a runner which pools gives for each text that was read, float32 [texts, numbers].
    vectors: Logits | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the runner has no result yet."""
        return not self.logits.size and self.choice is None and not self.failure and self.vectors is None

    @property
    def last(self) -> Logits:
        """The logits after the last token."""
        last: Logits = self.logits[-1]
        return last

    def at(self, position: int) -> "Scores":
        """The scores after one of the tokens, where `logits` has all tokens of the vocabulary."""
        return Scores(self.logits[position : position + 1])

    def copy(self) -> "Scores":
        """The same logits in memory of their own."""
        return replace(self, logits=self.logits.copy())

    def chosen(self) -> int | None:
        """The token that the runner chose; None if it gives logits. Raises RunnerFailed with the failure."""
        if self.failure:
            raise RunnerFailed(self.failure)
        return self.choice

    def token(self, index: int) -> int:
        """The token at an index of the last logits."""
        return index if self.tokens is None else int(self.tokens[index])
