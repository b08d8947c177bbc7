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

# Number of logits in a group. Groups are first compared by their maxima.
_GROUP = 32
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
        top_k = self._sampling.top_k
        tokens = None
        if 0 < top_k < logits.size:
            tokens = top_tokens(logits, top_k) if top_k <= MAX_SORTED else highest(logits, top_k)
            logits = logits[tokens]
        weights = self._weights(logits)
        passing = self._passing(weights)
        index = _first_above(weights if passing is None else weights[passing], self._random.random())
        if passing is not None:
            index = int(passing[index])
        return index if tokens is None else int(tokens[index])

    def _weights(self, logits: Logits) -> Logits:
        """Probabilities up to a common factor, in the precision of the logits: doubles take 4 times as long."""
        with np.errstate(over="ignore"):  # with a tiny temperature only the best remains: exp(-inf) is 0
            weights: Logits = logits - logits.max()
            weights /= np.float32(max(self._sampling.temperature, _MIN_TEMPERATURE))
            np.exp(weights, out=weights)
        return weights

    def _passing(self, weights: Logits) -> NDArray[np.int64] | None:
        """The indices of the weights that pass top-p and min-p, in ascending order; None if all pass."""
        sampling = self._sampling
        passing = nucleus(weights, sampling.top_p) if sampling.top_p < 1.0 else None
        if sampling.min_p > 0.0:
            is_likely = weights >= np.float32(sampling.min_p) * weights.max()
            passing = np.flatnonzero(is_likely) if passing is None else passing[is_likely[passing]]
        return passing


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


def nucleus(weights: Logits, top_p: float) -> NDArray[np.int64]:
    """The indices, in ascending order, of the top-p nucleus of non-negative weights (arXiv 1904.09751).

    It has the fewest and largest weights whose sum reaches the share `top_p` of the total; of equal ones, those with
    the lowest indices. Values are sorted, not indices, which takes a thirtieth of numpy's time. Weights that are too
    small to matter even together are left out.
    """
    total = float(weights.sum(dtype=np.float64))
    found = np.flatnonzero(weights >= np.float32((1.0 - top_p) * total / weights.size))
    candidates = weights[found]
    ordered = np.sort(candidates)[::-1]
    share = top_p * total / float(ordered.sum(dtype=np.float64))
    last = _first_above(ordered, float(np.nextafter(share, 0.0)))
    return found[_down_to(candidates, ordered[last], last + 1)]


def top_tokens(logits: Logits, k: int) -> NDArray[np.int64]:
    """The ids of the `k` highest logits [vocab_size], highest first; of equal ones, the lowest id first.

    Excluded tokens (minus infinity) are left out, so there may be fewer.
    """
    found = highest(logits, k)
    return found[np.argsort(-logits[found], kind="stable")]


def highest(logits: Logits, k: int) -> NDArray[np.int64]:
    """The ids of the `k` highest logits [vocab_size], in ascending order; of equal ones, the lowest ids.

    Excluded tokens (minus infinity) are left out, so there may be fewer. The k-th highest maximum of groups of logits
    is a lower bound of the k-th highest logit, so only logits above it are examined. For 150,000 logits this takes a
    quarter of the time of a full partition.
    """
    num_groups = logits.size // _GROUP
    bound = _LOWEST
    if num_groups > k:
        # Every num_groups-th logit is in the same group, so that the maximum is one of whole rows.
        groups = logits[: num_groups * _GROUP].reshape(_GROUP, num_groups)
        bound = max(bound, _kth_highest(groups.max(axis=0), k))
    found = np.flatnonzero(logits >= bound)
    if found.size <= k:
        return found
    candidates = logits[found]
    return found[_down_to(candidates, _kth_highest(candidates, k), k)]


def _down_to(values: Logits, least: np.float32, number: int) -> NDArray[np.int64]:
    """The indices, in ascending order, of the `number` largest values, the smallest of which is `least`."""
    kept = values > least
    kept[np.flatnonzero(values == least)[: number - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def _kth_highest(values: Logits, k: int) -> np.float32:
    highest: np.float32 = np.partition(values, values.size - k)[values.size - k]
    return highest
