"""What a pass reads of one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The first rank of an adapter and the number of its ranks.
Ranks = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """The tokens that a pass reads behind those of a slot."""

    slot: int
    num_cached: int
    tokens: Sequence[int]
    # The logits after this many of the last tokens are wanted.
    num_logits: int = 1
    # Whether it has the cosines and sines for long rows (`DecoderGraph.switches_at`).
    is_long: bool = False
    # Of the image tokens among them, [features, hidden_size].
    features: NDArray[Any] | None = None
    # Of the tokens, int64 [axes, tokens]; None if they are counted from `num_cached`.
    positions: NDArray[np.int64] | None = None
    # The ranks of its adapter; None without one.
    ranks: Ranks | None = None
    # Whether it shares no pass with others.
    is_alone: bool = False
    # How many of the tokens, at the end, are of a draft.
    num_drafted: int = 0
    # What a head for multi-token prediction reads besides the tokens, [tokens, hidden_size].
    hidden: NDArray[Any] | None = None
    # What a device multiplies logits with for its softmax.
    scale: float = 1.0
