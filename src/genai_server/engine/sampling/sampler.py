"""Chooses the next token from the logits, for every runner alike; it knows no model.

The order, up to the penalties as in vLLM and from the temperature on as in Hugging Face's generation: what the grammar
and min_tokens rule out, logit bias, repetition penalty, frequency and presence penalty, temperature, top-k, top-p,
min-p.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.runners.scores import Logits
from genai_server.engine.sampling.penalties import Bias, Penalties, penalizes
from genai_server.errors import InvalidField
from genai_server.generation import Sampling

_BLOCK = 32
# Up to so many of the highest logits are sorted; more are only told from the rest, for to sort a large vocabulary takes
# tens of milliseconds.
MOST_SORTED = 4096
# Below it is only what is ruled out.
_LOWEST = np.finfo(np.float32).min
_SUMMED_BLOCK = 256
_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)


class Sampler:
    """One request's sampler. Its random stream is its own, so the same seed gives the same tokens in any company."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._bias = Bias(sampling.logit_bias) if sampling.logit_bias else None
        self._penalties = Penalties(sampling, prompt) if penalizes(sampling) else None

    @property
    def num_choices(self) -> int:
        """How many of the highest logits, as the model gives them, a token is chosen among; 0 if it may be any."""
        if self._bias is not None or self._penalties is not None:
            return 0
        return 1 if self._sampling.temperature == 0.0 else self._sampling.top_k

    def sample(self, logits: Logits, *, allowed: NDArray[np.bool_] | None = None, banned: Sequence[int] = ()) -> int:
        """The next token id, from float32 logits of shape [vocab_size]; they are left as they are.

        It is one of those `allowed` [vocab_size], if that is given, and none of those `banned`. Raises InvalidField if
        the request's logit bias rules out all of these.
        """
        logits = self._adjusted(logits, allowed, banned)
        token = int(logits.argmax()) if self._sampling.temperature == 0.0 else self._draw(logits)
        self.note(token)
        return token

    def note(self, token: int) -> None:
        """Count a token of the answer, whoever has chosen it."""
        if self._penalties is not None:
            self._penalties.count(token)

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
        if 0 < sampling.top_k <= MOST_SORTED:
            tokens = top_tokens(logits, sampling.top_k)
            weights = self._weights(logits[tokens], best)
            kept = self._nucleus(weights / weights.sum())
            return int(tokens[self._pick(weights[:kept])])
        if 0 < sampling.top_k < logits.size:
            logits = highest(logits, sampling.top_k)
        weights = self._weights(logits, best)
        passing = weights
        if sampling.top_p < 1.0:
            passing = nucleus(weights, sampling.top_p)
        if sampling.min_p > 0.0:
            passing = passing * (weights >= np.float32(sampling.min_p) * weights.max())
        return self._pick(passing)

    def _weights(self, logits: Logits, best: np.float32) -> Logits:
        """Probabilities but for a factor, in the logits' precision: in twice that a large vocabulary takes 4 times as
        long.
        """
        temperature = np.float32(max(self._sampling.temperature, _LEAST_TEMPERATURE))
        with np.errstate(over="ignore"):  # a tiny temperature leaves only the best: exp(-inf) is 0
            weights: Logits = np.exp((logits - best) / temperature)
        return weights

    def _pick(self, weights: Logits) -> int:
        """An index, each as likely as its share of the weights."""
        return _first_above(weights, self._random.random())

    def _nucleus(self, probabilities: Logits) -> int:
        """How many of the probabilities, sorted downwards, pass top-p (arXiv 1904.09751) and min-p; at least one."""
        before = np.cumsum(probabilities, dtype=np.float64) - probabilities
        passes = (before < self._sampling.top_p) & (probabilities >= self._sampling.min_p * probabilities[0])
        passes[0] = True
        return int(passes.argmin()) if not passes.all() else int(probabilities.size)


def _first_above(weights: Logits, share: float) -> int:
    """The first index up to which the weights have more than a share of their sum: first a block of them, then one of
    the block, for to cumulate all of a large vocabulary would take ten times as long.
    """
    starts = np.arange(0, weights.size, _SUMMED_BLOCK)
    blocks = np.add.reduceat(weights, starts).cumsum(dtype=np.float64)
    value = share * float(blocks[-1])
    block = _above(blocks, value)
    start = int(starts[block])
    within = weights[start : start + _SUMMED_BLOCK].cumsum(dtype=np.float64)
    return start + _above(within, value - float(blocks[block - 1] if block else 0.0))


def _above(cumulative: NDArray[np.float64], value: float) -> int:
    """The first index whose cumulative weight exceeds a value, so that it has weight itself; also if by rounding the
    value has reached them all.
    """
    return int(np.searchsorted(cumulative, min(value, np.nextafter(cumulative[-1], 0.0)), side="right"))


def nucleus(weights: Logits, top_p: float) -> Logits:
    """Of these weights [vocab_size], none negative, the fewest and largest whose sum reaches the share `top_p` of all
    (arXiv 1904.09751), of equals those of the lowest ids; the others are 0 in what is returned.

    Values are sorted, not ids, which takes numpy a thirtieth of the time; those too small to matter even all together
    are left out.
    """
    total = float(weights.sum(dtype=np.float64))
    ordered = weights[weights >= np.float32((1.0 - top_p) * total / weights.size)]
    ordered.sort()
    ordered = ordered[::-1]
    share = top_p * total / float(ordered.sum(dtype=np.float64))
    last = _first_above(ordered, float(np.nextafter(share, 0.0)))
    least = ordered[last]
    larger = weights > least
    kept: Logits = weights * larger  # a third of what numpy's where takes
    kept[np.flatnonzero(weights == least)[: last + 1 - np.count_nonzero(larger)]] = least
    return kept


def top_tokens(logits: Logits, k: int) -> NDArray[np.int64]:
    """The ids of the `k` highest logits [vocab_size], highest first, of equals the lowest id first.

    What is ruled out (minus infinity) is not among them, so there may be fewer. The k-th highest of the blocks' maxima
    bounds the k-th highest logit from below, so that only what reaches it needs a closer look: for 150,000 logits a
    tenth of the time of a partition of them all.
    """
    num_blocks = logits.size // _BLOCK
    bound = _LOWEST
    if num_blocks > k:
        bound = max(bound, _kth_highest(logits[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).max(axis=1), k))
    found = np.flatnonzero(logits >= bound)
    if found.size > k:
        found = found[logits[found] >= _kth_highest(logits[found], k)]
    return found[np.argsort(-logits[found], kind="stable")][:k]


def highest(logits: Logits, k: int) -> Logits:
    """The logits [vocab_size] with all ruled out (minus infinity) but the `k` highest, of equals the lowest ids.

    Nothing is sorted; `k` is less than the size.
    """
    least = _kth_highest(logits, k)
    kept = logits > least
    kept[np.flatnonzero(logits == least)[: k - np.count_nonzero(kept)]] = True
    return np.where(kept, logits, np.float32(-np.inf))


def _kth_highest(values: Logits, k: int) -> np.float32:
    highest: np.float32 = np.partition(values, values.size - k)[values.size - k]
    return highest
