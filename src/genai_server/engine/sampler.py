"""Chooses the next token from the logits, for every runner alike; it knows no model.

Order of the filters as in Hugging Face's generation: repetition penalty, temperature, top-k, top-p, min-p.
"""

import numpy as np
from numpy.typing import NDArray

from genai_server.generation import Sampling

Logits = NDArray[np.float32]


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
        tokens = self._candidates(logits)
        scores = logits[tokens].astype(np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature leaves only the best: exp(-inf) is 0
            weights = np.exp((scores - scores[0]) / self._sampling.temperature)
        kept = self._nucleus(weights / weights.sum())
        cumulative = np.cumsum(weights[:kept])
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(tokens[min(int(drawn), kept - 1)])

    def _candidates(self, logits: Logits) -> NDArray[np.int64]:
        """Token ids with the highest scores first: the top k, or all."""
        k = self._sampling.top_k
        if 0 < k < logits.size:
            top = np.argpartition(logits, logits.size - k)[-k:]
            return top[np.argsort(-logits[top], kind="stable")]
        return np.argsort(-logits, kind="stable")

    def _nucleus(self, probabilities: NDArray[np.float64]) -> int:
        """How many of the probabilities, sorted downwards, pass top-p (arXiv 1904.09751) and min-p; at least one."""
        before = np.cumsum(probabilities) - probabilities
        passes = (before < self._sampling.top_p) & (probabilities >= self._sampling.min_p * probabilities[0])
        passes[0] = True
        return int(passes.argmin()) if not passes.all() else int(probabilities.size)
