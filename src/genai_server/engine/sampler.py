"""Chooses the next token from the logits, for every runner alike; it knows no model.

Order of the filters as in Hugging Face's generation: repetition penalty, temperature, top-k, top-p, min-p.
"""

import numpy as np
from numpy.typing import NDArray

from genai_server.generation import Sampling

Logits = NDArray[np.float32]
# Candidates to look at first where only probabilities bound their number.
_MOST_CANDIDATES = 512
_BLOCK = 32
_PICKED_BLOCK = 256
_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)


class Sampler:
    """One request's sampler. Its random stream is its own, so the same seed gives the same tokens in any company."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._seen = np.unique(np.array(prompt)) if sampling.repetition_penalty != 1.0 else None

    def sample(self, logits: Logits) -> int:
        """The next token id, from float32 logits of shape [vocab_size]; they are left as they are."""
        if self._seen is not None:
            logits = self._penalized(logits, self._seen)
        token = int(logits.argmax()) if self._sampling.temperature == 0.0 else self._draw(logits)
        if self._seen is not None:
            self._seen = np.union1d(self._seen, [token])
        return token

    def _penalized(self, logits: Logits, seen: NDArray[np.int64]) -> Logits:
        """CTRL's penalty (arXiv 1909.05858, section 4.1): positive scores are divided by it, negative multiplied."""
        penalty = np.float32(self._sampling.repetition_penalty)
        logits = logits.copy()
        scores = logits[seen]
        logits[seen] = np.where(scores > 0, scores / penalty, scores * penalty)
        return logits

    def _draw(self, logits: Logits) -> int:
        sampling = self._sampling
        best = logits.max()
        if sampling.top_k:
            tokens = top_tokens(logits, sampling.top_k)
            weights = self._weights(logits[tokens], best)
            kept = self._nucleus(weights / weights.sum())
            return int(tokens[self._pick(weights[:kept])])
        weights = self._weights(logits, best)
        if sampling.top_p == 1.0 and sampling.min_p == 0.0:
            return self._pick(weights)
        tokens = top_tokens(logits, _MOST_CANDIDATES)
        kept = self._nucleus(weights[tokens] / weights.sum())
        if kept == len(tokens) < logits.size:
            # A flat distribution: the filters let more through than was looked at.
            tokens = top_tokens(logits, logits.size)
            kept = self._nucleus(weights[tokens] / weights.sum())
        return int(tokens[self._pick(weights[tokens[:kept]])])

    def _weights(self, logits: Logits, best: np.float32) -> Logits:
        """Probabilities but for a factor, in the logits' precision: in twice that a large vocabulary takes 4 times as
        long.
        """
        temperature = np.float32(max(self._sampling.temperature, _LEAST_TEMPERATURE))
        with np.errstate(over="ignore"):  # a tiny temperature leaves only the best: exp(-inf) is 0
            weights: Logits = np.exp((logits - best) / temperature)
        return weights

    def _pick(self, weights: Logits) -> int:
        """An index, each as likely as its share of the weights: first a block of them, then one of the block.

        Cumulating all of a large vocabulary would take ten times as long.
        """
        starts = np.arange(0, weights.size, _PICKED_BLOCK)
        blocks = np.add.reduceat(weights, starts).cumsum(dtype=np.float64)
        drawn = self._random.random() * blocks[-1]
        block = _above(blocks, drawn)
        start = int(starts[block])
        within = weights[start : start + _PICKED_BLOCK].cumsum(dtype=np.float64)
        return start + _above(within, drawn - (blocks[block - 1] if block else 0.0))

    def _nucleus(self, probabilities: Logits) -> int:
        """How many of the probabilities, sorted downwards, pass top-p (arXiv 1904.09751) and min-p; at least one."""
        before = np.cumsum(probabilities, dtype=np.float64) - probabilities
        passes = (before < self._sampling.top_p) & (probabilities >= self._sampling.min_p * probabilities[0])
        passes[0] = True
        return int(passes.argmin()) if not passes.all() else int(probabilities.size)


def _above(cumulative: NDArray[np.float64], value: float) -> int:
    """The first index whose cumulative weight exceeds a value, so that it has weight itself; also if by rounding the
    value has reached them all.
    """
    return int(np.searchsorted(cumulative, min(value, np.nextafter(cumulative[-1], 0.0)), side="right"))


def top_tokens(logits: Logits, k: int) -> NDArray[np.int64]:
    """The ids of the `k` highest logits [vocab_size], highest first, of equals the lowest id first.

    The k-th highest of the blocks' maxima bounds the k-th highest logit from below, so that only what reaches it needs
    sorting: for 150,000 logits a tenth of the time of a partition of them all.
    """
    size = logits.size
    num_blocks = size // _BLOCK
    if num_blocks <= k:
        return np.argsort(-logits, kind="stable")[:k]
    maxima = logits[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).max(axis=1)
    bound = np.partition(maxima, num_blocks - k)[num_blocks - k]
    found = np.flatnonzero(logits >= bound)
    return found[np.argsort(-logits[found], kind="stable")][:k]
