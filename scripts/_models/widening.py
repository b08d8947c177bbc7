"""A Llama that is widened: with channels and heads of zeros it computes what it did."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The ends of the names of settings in a GGUF file.
WIDTH, HEADS, KEY_HEADS = ".embedding_length", ".attention.head_count", ".attention.head_count_kv"
EPSILON = ".attention.layer_norm_rms_epsilon"


@dataclass(frozen=True)
class Widening:
    """Makes the width, and the heads of queries and of keys, larger by the same ratio. A head keeps its size."""

    width: int
    # Of all heads of keys together.
    key_width: int
    ratio: float

    @property
    def settings(self) -> dict[str, float]:
        """Factors of settings, by the ends of their names. Norms are of the mean over more channels."""
        return dict.fromkeys((WIDTH, HEADS, KEY_HEADS), self.ratio) | {EPSILON: 1 / self.ratio}

    def widened(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """A tensor of the wider model. One of a single dimension has the weights of a norm."""
        grown = [round(n * self.ratio) if n in (self.width, self.key_width) else n for n in values.shape]
        padded = np.pad(values, [(0, new - old) for new, old in zip(grown, values.shape, strict=True)])
        return padded / np.float32(self.ratio**0.5) if values.ndim == 1 else padded


def widening_to(block: int, *, width: int, heads: int, key_heads: int) -> Widening:
    """The least widening that makes the width a multiple of a block, with whole heads."""
    new = next(n for n in itertools.count(width) if not (n % block or n * heads % width or n * key_heads % width))
    return Widening(width, width // heads * key_heads, new / width)
