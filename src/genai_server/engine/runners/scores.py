"""What a pass tells of a sequence: logits, or what came of them where they were made."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from genai_server.errors import RunnerFailed

Logits = NDArray[np.float32]


def _no_logits() -> Logits:
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Scores:
    """The logits [positions, vocab_size] after the last tokens; or those of the best `tokens` [count] alone,
    [1, count], highest first, of equals the lowest token first. Where the runner chooses itself, the token that is its
    `choice`, or a `failure`. If there is none of all these, nothing is known yet.
    """

    logits: Logits = field(default_factory=_no_logits)
    tokens: NDArray[np.int64] | None = None
    choice: int | None = None
    failure: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether nothing is known yet."""
        return not self.logits.size and self.choice is None and not self.failure

    @property
    def last(self) -> Logits:
        """The logits after the last token."""
        last: Logits = self.logits[-1]
        return last

    def chosen(self) -> int | None:
        """The runner's own choice, None if it has left that to others. Raises RunnerFailed with the failure."""
        if self.failure:
            raise RunnerFailed(self.failure)
        return self.choice

    def token(self, index: int) -> int:
        """The token that an index into the last logits stands for."""
        return index if self.tokens is None else int(self.tokens[index])
