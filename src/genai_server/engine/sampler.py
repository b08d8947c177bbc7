"""Chooses the next token from the logits, for every runner alike; it knows no model.

The order, up to the penalties as in vLLM and from the temperature on as in Hugging Face's generation: what the grammar
and min_tokens rule out, logit bias, repetition penalty, frequency and presence penalty, temperature, top-k, top-p,
min-p.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.penalties import Bias, Penalties, penalizes
from genai_server.engine.runners.base import Logits
from genai_server.errors import InvalidField
from genai_server.generation import Sampling

# Candidates to look at first where only probabilities bound their number.
_MOST_CANDIDATES = 512
_BLOCK = 32
# Below it is only what is ruled out.
_LOWEST = np.finfo(np.float32).min


class Sampler:
    """One request's sampler. Its random stream is its own, so the same seed gives the same tokens in any company."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._bias = Bias(sampling.logit_bias) if sampling.logit_bias else None
        self._penalties = Penalties(sampling, prompt) if penalizes(sampling) else None

    def sample(self, logits: Logits, *, allowed: NDArray[np.bool_] | None = None, banned: Sequence[int] = ()) -> int:
        """The next token id, from float32 logits of shape [vocab_size]; they are left as they are.

        It is one of those `allowed` [vocab_size], if that is given, and none of those `banned`. Raises InvalidField if
        the request's logit bias rules out all of these.
        """
        logits = self._adjusted(logits, allowed, banned)
        token = int(logits.argmax()) if self._sampling.temperature == 0.0 else self._draw(logits)
        if self._penalties is not None:
            self._penalties.count(token)
        return token

    def _adjusted(self, logits: Logits, allowed: NDArray[np.bool_] | None, banned: Sequence[int]) -> Logits:
        """The logits with everything that comes before the temperature; minus infinity is ruled out."""
        if allowed is None and not banned and self._bias is None and self._penalties is None:
            return logits
        logits = logits.copy() if allowed is None else np.where(allowed, logits, np.float32(-np.inf))
        logits[list(banned)] = -np.inf
        if self._bias is not None:
            self._bias.apply(logits)
            if logits.max() == -np.inf:
                raise InvalidField(
                    "logit_bias rules out every token that could come next, together with grammar and min_tokens",
                    param="logit_bias",
                )
        if self._penalties is not None:
            self._penalties.apply(logits)
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
        if kept == len(tokens) == _MOST_CANDIDATES < logits.size:
            # A flat distribution: the filters let more through than was looked at.
            tokens = top_tokens(logits, logits.size)
            kept = self._nucleus(weights[tokens] / weights.sum())
        return int(tokens[self._pick(weights[tokens[:kept]])])

    def _weights(self, logits: Logits, best: np.float32) -> NDArray[np.float64]:
        """Probabilities but for a factor."""
        with np.errstate(over="ignore"):  # a tiny temperature leaves only the best: exp(-inf) is 0
            return np.exp((logits.astype(np.float64) - best) / self._sampling.temperature)

    def _pick(self, weights: NDArray[np.float64]) -> int:
        """An index, each as likely as its share of the weights."""
        cumulative = np.cumsum(weights)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return min(int(drawn), len(cumulative) - 1)

    def _nucleus(self, probabilities: NDArray[np.float64]) -> int:
        """How many of the probabilities, sorted downwards, pass top-p (arXiv 1904.09751) and min-p; at least one."""
        before = np.cumsum(probabilities) - probabilities
        passes = (before < self._sampling.top_p) & (probabilities >= self._sampling.min_p * probabilities[0])
        passes[0] = True
        return int(passes.argmin()) if not passes.all() else int(probabilities.size)


def top_tokens(logits: Logits, k: int) -> NDArray[np.int64]:
    """The ids of the `k` highest logits [vocab_size], highest first, of equals the lowest id first.

    What is ruled out (minus infinity) is not among them, so there may be fewer. The k-th highest of the blocks' maxima
    bounds the k-th highest logit from below, so that only what reaches it needs sorting: for 150,000 logits a tenth of
    the time of a partition of them all.
    """
    size = logits.size
    num_blocks = size // _BLOCK
    bound = _LOWEST
    if num_blocks > k:
        maxima = logits[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).max(axis=1)
        bound = max(bound, np.partition(maxima, num_blocks - k)[num_blocks - k])
    found = np.flatnonzero(logits >= bound)
    return found[np.argsort(-logits[found], kind="stable")][:k]
