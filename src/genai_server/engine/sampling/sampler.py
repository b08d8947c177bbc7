"""Chooses the next token from the logits, in the same way for every runner and model.

The order is: exclusions by the grammar and min_tokens, logit bias, repetition penalty, frequency and presence penalty,
temperature, top-k, top-p, min-p. Up to the penalties it is that of vLLM, from the temperature on that of Hugging Face's
generation. Where a grammar is only a guide, a token is first drawn without it, and drawn again in this order if the
grammar excludes it, as llama.cpp does. So where the grammar excludes nothing that is drawn, it changes nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.runners.scores import Logits
from genai_server.engine.sampling.penalties import Bias, Penalties
from genai_server.errors import InvalidField
from genai_server.messages.generation_request import Sampling

_BLOCK = 32
# A larger top-k is only separated from the rest, not sorted: sorting a large vocabulary takes tens of milliseconds.
MAX_SORTED = 4096
# The lowest value of a token that is not excluded.
_LOWEST = np.finfo(np.float32).min
_SUMMED_BLOCK = 256
_MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)


class Sampler:
    """One request's sampler. It has its own random numbers, so a seed gives the same tokens in any batch."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._bias = Bias(sampling.logit_bias) if sampling.logit_bias else None
        self._penalties = Penalties(sampling, prompt) if sampling.penalizes else None

    @property
    def num_choices(self) -> int:
        """The number of the model's highest logits among which a token is chosen; 0 if it may be any."""
        if self._bias is not None or self._penalties is not None:
            return 0
        return 1 if self._sampling.temperature == 0.0 else self._sampling.top_k

    def sample(self, logits: Logits, *, allowed: NDArray[np.bool_] | None = None, banned: Sequence[int] = ()) -> int:
        """The next token id, from float32 logits [vocab_size], which are left unchanged.

        It is one of `allowed` [vocab_size], if given, and none of `banned`. Raises InvalidField if the request's logit
        bias excludes all of these.
        """
        logits = self._adjusted(logits, allowed, banned)
        token = int(logits.argmax()) if self._sampling.temperature == 0.0 else self._draw(logits)
        self.note(token)
        return token

    def first(self, logits: Logits, *, banned: Sequence[int] = (), draws: bool) -> int | None:
        """The token that `sample` gives without a grammar; None if it would be drawn and `draws` is false.

        It is not counted yet. If the grammar allows it, it is the next token; otherwise `sample` chooses among the
        allowed ones. A greedy token is the same either way. A drawn one has the probabilities that the allowed tokens
        have without the others, unless top-k, top-p or min-p is set: these keep other tokens where fewer are left.
        """
        if self._sampling.temperature == 0.0:
            return int(self._adjusted(logits, None, banned).argmax())
        return self._draw(self._adjusted(logits, None, banned)) if draws else None

    def note(self, token: int) -> None:
        """Count a token of the answer, even if another component has chosen it."""
        if self._penalties is not None:
            self._penalties.count(token)

    def _adjusted(self, logits: Logits, allowed: NDArray[np.bool_] | None, banned: Sequence[int]) -> Logits:
        """The logits after all steps before the temperature; minus infinity marks excluded tokens."""
        if allowed is None and not banned and self._bias is None and self._penalties is None:
            return logits
        logits = logits.copy() if allowed is None else np.where(allowed, logits, np.float32(-np.inf))
        logits[list(banned)] = -np.inf
        if self._bias is not None:
            self._bias.apply(logits)
            if logits.max() == -np.inf:
                raise InvalidField(
                    "logit_bias, together with grammar and min_tokens, excludes every possible next token",
                    param="logit_bias",
                )
        if self._penalties is not None:
            self._penalties.apply(logits)
        return logits

    def _draw(self, logits: Logits) -> int:
        sampling = self._sampling
        best = logits.max()
        if 0 < sampling.top_k <= MAX_SORTED:
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
        """Probabilities up to a common factor, in the precision of the logits: doubles take 4 times as long."""
        temperature = np.float32(max(self._sampling.temperature, _MIN_TEMPERATURE))
        with np.errstate(over="ignore"):  # with a tiny temperature only the best remains: exp(-inf) is 0
            weights: Logits = np.exp((logits - best) / temperature)
        return weights

    def _pick(self, weights: Logits) -> int:
        """A random index, weighted by the weights."""
        return _first_above(weights, self._random.random())

    def _nucleus(self, probabilities: Logits) -> int:
        """How many of the probabilities, sorted downwards, pass top-p (arXiv 1904.09751) and min-p; at least one."""
        before = np.cumsum(probabilities, dtype=np.float64) - probabilities
        passes = (before < self._sampling.top_p) & (probabilities >= self._sampling.min_p * probabilities[0])
        passes[0] = True
        return int(passes.argmin()) if not passes.all() else int(probabilities.size)


def _first_above(weights: Logits, share: float) -> int:
    """The first index up to which the weights sum to more than a share of their total.

    It finds a block first, then the index within: cumulating a whole large vocabulary would take ten times as long.
    """
    starts = np.arange(0, weights.size, _SUMMED_BLOCK)
    blocks = np.add.reduceat(weights, starts).cumsum(dtype=np.float64)
    value = share * float(blocks[-1])
    block = _above(blocks, value)
    start = int(starts[block])
    within = weights[start : start + _SUMMED_BLOCK].cumsum(dtype=np.float64)
    return start + _above(within, value - float(blocks[block - 1] if block else 0.0))


def _above(cumulative: NDArray[np.float64], value: float) -> int:
    """The first index whose cumulative weight exceeds a value, so that its own weight is positive.

    A value that reaches the total by rounding gives the last such index.
    """
    return int(np.searchsorted(cumulative, min(value, np.nextafter(cumulative[-1], 0.0)), side="right"))


def nucleus(weights: Logits, top_p: float) -> Logits:
    """The top-p nucleus of non-negative weights [vocab_size] (arXiv 1904.09751); all other weights become 0.

    It keeps the fewest and largest weights whose sum reaches the share `top_p` of the total; of equal ones, those with
    the lowest ids. Values are sorted, not ids, which takes a thirtieth of numpy's time. Weights that are too small to
    matter even together are left out.
    """
    total = float(weights.sum(dtype=np.float64))
    ordered = weights[weights >= np.float32((1.0 - top_p) * total / weights.size)]
    ordered.sort()
    ordered = ordered[::-1]
    share = top_p * total / float(ordered.sum(dtype=np.float64))
    last = _first_above(ordered, float(np.nextafter(share, 0.0)))
    least = ordered[last]
    larger = weights > least
    kept: Logits = weights * larger  # takes a third of the time of numpy's where
    kept[np.flatnonzero(weights == least)[: last + 1 - np.count_nonzero(larger)]] = least
    return kept


def top_tokens(logits: Logits, k: int) -> NDArray[np.int64]:
    """The ids of the `k` highest logits [vocab_size], highest first; of equal ones, the lowest id first.

    Excluded tokens (minus infinity) are left out, so there may be fewer. The k-th highest maximum of the blocks is a
    lower bound of the k-th highest logit, so only logits above it are examined. For 150,000 logits this takes a tenth
    of the time of a full partition.
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
    """The logits [vocab_size] with all but the `k` highest excluded (minus infinity); of equal ones, the lowest ids
    stay.

    Nothing is sorted; `k` is less than the size.
    """
    least = _kth_highest(logits, k)
    kept = logits > least
    kept[np.flatnonzero(logits == least)[: k - np.count_nonzero(kept)]] = True
    return np.where(kept, logits, np.float32(-np.inf))


def _kth_highest(values: Logits, k: int) -> np.float32:
    highest: np.float32 = np.partition(values, values.size - k)[values.size - k]
    return highest
