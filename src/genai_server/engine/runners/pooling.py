"""Makes one vector of the vectors of a text's tokens, as sentence-transformers does."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.scores import Logits

_LEAST = 1e-9


def pool(states: Logits, mask: NDArray[np.int64], modes: Sequence[str]) -> Logits:
    """The vectors of all rows [rows, modes * width], from their tokens' [rows, tokens, width].

    `mask` [rows, tokens] is 1 for tokens that count, which stand side by side. Several modes are joined.
    """
    return np.concatenate([_pooled(states, mask, mode) for mode in modes], axis=1)


def _pooled(states: Logits, mask: NDArray[np.int64], mode: str) -> Logits:
    rows = np.arange(len(states))
    found: Logits
    if mode == "cls":
        found = states[rows, mask.argmax(axis=1)]
    elif mode == "lasttoken":
        found = states[rows, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)]
    elif mode == "max":
        found = np.where(mask[..., np.newaxis] == 0, np.float32(-np.inf), states).max(axis=1)
    else:
        found = _mean(states, mask.astype(np.float32), mode)
    return found


def _mean(states: Logits, weights: Logits, mode: str) -> Logits:
    if mode == "weightedmean":
        weights = weights * np.arange(1, weights.shape[1] + 1, dtype=np.float32)
    total = np.matmul(weights[:, np.newaxis], states)[:, 0]
    count = np.maximum(weights.sum(axis=1, keepdims=True), _LEAST)
    return np.asarray(total / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count), np.float32)


def normalized(vectors: Logits) -> Logits:
    """The vectors [rows, width] with length 1. A vector of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
