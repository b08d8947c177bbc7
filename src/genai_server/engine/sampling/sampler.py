"""Chooses the next token of a sequence from the logits by the request's sampling parameters, in the same way for every
runner and model (`Sampler`).

The parameters are applied in this order: exclusions by the grammar, min_tokens, allowed tokens and bad words; logit
bias, repetition penalty, frequency and presence penalty; temperature, top-k, top-p, min-p. Up to the penalties this is
the order of vLLM, from the temperature on that of Hugging Face's generation. If the request does not require its
grammar, a token is first drawn as if there were no grammar. If the grammar excludes the token, another one is drawn in
the order above, as in llama.cpp. A grammar therefore has no effect as long as it excludes no drawn token.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.scores import NUM_BEST, SHARE_ERROR, Best, Logits, Scores
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.messages.generation_request import Sampling

# Minimum absolute value of a bias that means, as OpenAI's API reference says, "a ban or exclusive selection".
_BAN_BIAS = 100.0


class Bias:
    """The `logit_bias` of one request, which adds a value to the logits of the tokens that it names.

    If it has tokens with values of 100 and more, only these tokens are allowed. Tokens with values of -100 and less are
    excluded.
    """

    def __init__(self, biases: dict[int, float]) -> None:
        self._only = np.array([token for token, bias in biases.items() if bias >= _BAN_BIAS], np.int64)
        self._tokens = np.array([token for token, bias in biases.items() if bias < _BAN_BIAS], np.int64)
        added = np.array([bias for bias in biases.values() if bias < _BAN_BIAS], np.float32)
        self._added = np.where(added <= -_BAN_BIAS, np.float32(-np.inf), added)
        self._by_token = dict(zip(self._tokens.tolist(), self._added.tolist(), strict=True))
        # Whether a token may become likelier in relation to others that it does not name.
        self.raises = any(bias > 0 for bias in biases.values())

    def apply(self, logits: Logits, tokens: NDArray[np.int64] | None = None) -> None:
        """Add the bias to `logits`, in place. Logits of excluded tokens become minus infinity.

        Without `tokens`, the logits are those of all tokens [vocab_size]. With `tokens`, they are the logits of the
        tokens with these ids, in the same order, and no value of the bias may be positive.
        """
        if tokens is not None:
            logits += np.array([self._by_token.get(token, 0.0) for token in tokens.tolist()], np.float32)
            return
        if self._only.size:
            allowed = logits[self._only]
            logits.fill(-np.inf)
            logits[self._only] = allowed
        logits[self._tokens] += self._added


class Penalties:
    """The repetition, frequency and presence penalties of one request, with how often each token has occurred in its
    prompt and answer.

    A Sampler creates it, calls `apply` before it chooses a token, and `count` afterwards. The time that this takes
    grows with the number of different tokens that are penalized.
    """

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._repetition = np.float32(sampling.repetition_penalty)
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        limit = sampling.repeat_last_n
        # The last tokens, each with whether it belongs to the answer; None if all tokens count.
        self._window = None if limit < 0 else deque(((token, False) for token in prompt), maxlen=limit)
        penalized = [token for token, _ in self._window] if self._window is not None else prompt
        # Each different token, with its count, and with its count in the answer.
        self._tokens, self._counts = np.unique(
            np.array(penalized if self._repetition != 1.0 else [], np.int64), return_counts=True
        )
        self._answer_counts = np.zeros(self._tokens.size)
        self._entries = {token: entry for entry, token in enumerate(self._tokens.tolist())}
        # Whether a token may become likelier.
        self.raises = self._repetition < 1.0 or self._frequency < 0.0 or self._presence < 0.0

    def apply(self, logits: Logits, tokens: NDArray[np.int64] | None = None) -> None:
        """Apply the penalties to `logits`, in place. Without `tokens`, `logits` has one entry for each token of the
        vocabulary [vocab_size]; with `tokens`, `logits[i]` is the logit of the token with the id `tokens[i]`.

        First comes CTRL's repetition penalty (arXiv 1909.05858, section 4.1) for tokens of prompt and answer: positive
        logits are divided by it, negative ones multiplied. Then come OpenAI's penalties (API reference, "frequency and
        presence penalties") for tokens of the answer: `logit -= count · frequency + (count > 0) · presence`. Of prompt
        and answer together, only the last `repeat_last_n` tokens count.
        """
        indices, entries = self._tokens, np.arange(self._tokens.size)
        if tokens is not None:
            pairs = enumerate(self._entries.get(token, -1) for token in tokens.tolist())
            indices, entries = np.array([pair for pair in pairs if pair[1] >= 0], np.int64).reshape(-1, 2).T
        scores, counts, answer_counts = logits[indices], self._counts[entries], self._answer_counts[entries]
        repeated = np.where(scores > 0, scores / self._repetition, scores * self._repetition)
        scores = np.where(counts > 0, repeated, scores)
        penalty = answer_counts * self._frequency + (answer_counts > 0) * self._presence
        logits[indices] = scores - penalty

    def count(self, token: int) -> None:
        """Count a new token of the answer, so that the following calls of `apply` penalize it."""
        entry = self._entries.setdefault(token, self._tokens.size)
        if entry == self._tokens.size:
            self._tokens = np.append(self._tokens, token)
            self._counts = np.append(self._counts, 0)
            self._answer_counts = np.append(self._answer_counts, 0.0)
        if self._window is not None:
            self._drop_oldest(self._window)
            self._window.append((token, True))
        self._counts[entry] += 1
        self._answer_counts[entry] += 1

    def _drop_oldest(self, window: deque[tuple[int, bool]]) -> None:
        """Make room for a new token in `window`, the last `repeat_last_n` tokens, each with whether it belongs to the
        answer: if the window is full, its oldest token is no longer counted.
        """
        if len(window) == window.maxlen:
            token, is_of_answer = window[0]
            # Without a repetition penalty the prompt's tokens are not counted.
            if (entry := self._entries.get(token)) is not None and (is_of_answer or self._repetition != 1.0):
                self._counts[entry] -= 1
                self._answer_counts[entry] -= is_of_answer


class BadWords:
    """Excludes the words that an answer must not contain (the request's `bad_words`), each of which is given as a list
    of tokens. It remembers the last tokens of the answer.

    The last token of a word is excluded if the answer ends with the word's other tokens, as in vLLM. A step takes time
    only for words whose last token but one is the answer's newest token.
    """

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._single = list(dict.fromkeys(word[0] for word in words if len(word) == 1))
        # The words of several tokens, by the last token but one.
        self._several: defaultdict[int, list[Sequence[int]]] = defaultdict(list)
        for word in words:
            if len(word) > 1:
                self._several[word[-2]].append(word)
        self._last: deque[int] = deque(maxlen=max(map(len, words)) - 1)

    def banned(self) -> list[int]:
        """Return the tokens that must not come next, because they would complete one of the words."""
        begun = self._several.get(self._last[-1], ()) if self._last else ()
        if not begun:
            return self._single
        last = list(self._last)
        return [*self._single, *(word[-1] for word in begun if last[1 - len(word) :] == list(word[:-1]))]

    def note(self, token: int) -> None:
        """Record a new token of the answer, so that `banned` knows with which tokens the answer ends."""
        self._last.append(token)


# Number of logits in a group. Groups are first compared by their maxima.
_GROUP = 32
# A larger top-k is only separated from the rest, not sorted: sorting a large vocabulary takes tens of milliseconds.
MAX_SORTED = 4096
# The lowest value of a token that is not excluded.
_LOWEST = np.finfo(np.float32).min
_SUMMED_BLOCK = 256
# Lower temperatures give the same tokens. Its reciprocal is a float32.
_MIN_TEMPERATURE = 1e-30


class Sampler:
    """Chooses the tokens of one sequence by the sampling parameters of its request. Each sampler has a random generator
    of its own, so that a seed gives the same tokens whatever else is in the batch.

    `prompt` has the token ids of the prompt, which penalties count. If a device returns only the highest logits, a
    token is chosen from these whenever they determine it. They do in most cases, because a draw considers the best
    tokens first.
    """

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._bias = Bias(sampling.logit_bias) if sampling.logit_bias else None
        self._penalties = Penalties(sampling, prompt) if sampling.penalizes else None
        self._bad_words = BadWords(sampling.bad_words) if sampling.bad_words else None
        self._raises = any(change is not None and change.raises for change in (self._bias, self._penalties))

    @property
    def scale(self) -> float:
        """The factor by which a device must multiply this sequence's logits before it computes the probability of the
        best token: 1 / temperature, or 1 if that probability is not needed.
        """
        needs_no_share = self._is_greedy or 0 < self._sampling.top_k <= NUM_BEST
        return 1.0 if needs_no_share else float(np.float32(1 / self._temperature))

    def needs_all(self, *, is_masked: bool) -> bool:
        """Whether the highest logits of the model can never determine the next token, so that all logits must be copied
        from the device. This is so if the request changes logits in a way in which any token may become the best.

        `is_masked` says whether a grammar or `min_tokens` excludes tokens.
        """
        sampling = self._sampling
        is_changed = is_masked or self._excludes or self._penalties is not None
        is_open = not self._is_greedy and not 0 < sampling.top_k <= NUM_BEST and not sampling.min_p
        return self._raises or (is_changed and is_open)

    def sample(self, scores: Scores, *, allowed: NDArray[np.bool_] | None = None, banned: Sequence[int] = ()) -> int:
        """Choose the next token by the logits at the last position of `scores`, and count it as a token of the answer.
        Returns the token.

        The token is one of the mask `allowed` [vocab_size], if that is given, and none of `banned`. Raises InvalidField
        if the request's sampling parameters exclude all tokens that are left, and RunnerFailed if the logits are not
        finite.
        """
        token = self._choose(scores, allowed, banned)
        self.note(token)
        return token

    def first(self, scores: Scores, *, banned: Sequence[int] = (), draws: bool) -> int | None:
        """Return the token that `sample` would choose if there were no grammar, without counting it. If the caller
        finds that the grammar allows this token, it uses the token and calls `note`; otherwise it calls `sample` with
        the mask of allowed tokens. This saves the time for computing the mask.

        If the request's tokens are drawn at random, and not greedy, the result is None unless `draws` is true. `banned`
        has tokens that must not be chosen. A greedy token that is allowed is the one that `sample` would choose as
        well. A random token that is allowed has the same probability as in a draw among the allowed tokens alone,
        unless top-k, top-p or min-p is set, which would keep other tokens if they were applied to the allowed tokens
        alone. Raises InvalidField and RunnerFailed.
        """
        return self._choose(scores, None, banned) if self._is_greedy or draws else None

    def note(self, token: int) -> None:
        """Count a token of the answer that `sample` has not chosen, for penalties and bad words. `sample` counts its
        own tokens itself.
        """
        if self._penalties is not None:
            self._penalties.count(token)
        if self._bad_words is not None:
            self._bad_words.note(token)

    @property
    def _excluding_fields(self) -> list[str]:
        """The names of the fields that the request has set and that may exclude tokens, such as `logit_bias`, for error
        messages.
        """
        sampling = self._sampling
        fields = {
            "logit_bias": sampling.logit_bias,
            "allowed_token_ids": sampling.allowed_tokens,
            "bad_words": sampling.bad_words,
        }
        return [field for field, value in fields.items() if value]

    @cached_property
    def _excludes(self) -> bool:
        """Whether the request has set fields that may exclude tokens, such as `bad_words`."""
        return bool(self._excluding_fields)

    @cached_property
    def _allowed(self) -> NDArray[np.bool_]:
        """The request's `allowed_tokens` as a mask with at least vocab_size values. It is created when it is first
        needed.
        """
        bits = np.frombuffer(self._sampling.allowed_tokens, np.uint8)
        return np.unpackbits(bits, bitorder="little").view(np.bool_)

    @property
    def _is_greedy(self) -> bool:
        return self._sampling.temperature == 0.0

    @property
    def _temperature(self) -> float:
        return max(self._sampling.temperature, _MIN_TEMPERATURE)

    def _choose(self, scores: Scores, allowed: NDArray[np.bool_] | None, banned: Sequence[int]) -> int:
        if self._bad_words is not None:
            banned = (*banned, *self._bad_words.banned())
        if self._sampling.allowed_tokens:
            allowed = self._allowed if allowed is None else allowed & self._allowed[: allowed.size]
        share = 0.0 if self._is_greedy else self._random.random()
        best = None
        if scores.best is not None:
            sure = scores.best.shares[-1]
        elif self._is_greedy and not self._is_adjusted(allowed, banned):
            best = int(scores.last.argmax())  # also the index of a value that is not a number
            sure = scores.last[best]
        else:
            sure = scores.last.max()
        # Any logit that is no number, or infinite, makes this one so.
        if not math.isfinite(sure):
            raise RunnerFailed("the model gave logits that are not finite")
        if best is not None:
            return best
        if scores.best is not None:
            token = self._from_best(scores.best, allowed, banned, share)
            if token is not None:
                return token
        logits = self._adjusted(scores.last, allowed, banned)
        return int(logits.argmax()) if self._is_greedy else self._from_all(logits, share)

    def _is_adjusted(self, allowed: NDArray[np.bool_] | None, banned: Sequence[int]) -> bool:
        return allowed is not None or bool(banned) or self._bias is not None or self._penalties is not None

    def _adjusted(
        self,
        logits: Logits,
        allowed: NDArray[np.bool_] | None,
        banned: Sequence[int],
        tokens: NDArray[np.int64] | None = None,
    ) -> Logits:
        """Return logits with all changes that come before the temperature: the mask `allowed` [vocab_size], the
        exclusion of the tokens `banned`, and the request's bias and penalties. Logits of excluded tokens are minus
        infinity.

        `logits` are those of all tokens [vocab_size] or, with `tokens`, those of the tokens with these ids. They are
        not changed. Raises InvalidField if the request's own fields help to exclude all tokens.
        """
        if not self._is_adjusted(allowed, banned):
            return logits
        if allowed is not None:
            allowed = allowed[: logits.size] if tokens is None else allowed[tokens]
        logits = logits.copy() if allowed is None else np.where(allowed, logits, np.float32(-np.inf))
        logits[list(banned) if tokens is None else np.isin(tokens, banned)] = -np.inf
        if self._bias is not None:
            self._bias.apply(logits, tokens)
        if self._excludes and tokens is None and logits.max() == -np.inf:
            fields = self._excluding_fields
            other_fields = ", ".join([*fields[1:], "grammar and min_tokens"])
            raise InvalidField(fields[0], f"excludes every possible next token, together with {other_fields}")
        if self._penalties is not None:
            self._penalties.apply(logits, tokens)
        return logits

    def _from_best(
        self, best: Best, allowed: NDArray[np.bool_] | None, banned: Sequence[int], share: float
    ) -> int | None:
        """Choose a token by the highest logits alone. Returns the token that a choice by all logits would give; None if
        the highest logits do not determine it.

        `best` has the highest logits from the device, `allowed` is a mask [vocab_size] or None, and `banned` has
        excluded tokens. `share` is the random number of the draw, from 0 to 1.
        """
        logits, tokens, top_k = best.logits[-1], best.tokens[-1], self._sampling.top_k
        is_adjusted = self._is_adjusted(allowed, banned)
        if is_adjusted:
            if self._raises:
                return None
            # The other logits are at most the lowest of these, and nothing raises them.
            adjusted = self._adjusted(logits, allowed, banned, tokens)
            order = np.lexsort((tokens, -adjusted))
            order = order[adjusted[order] > logits[-1]]
            logits, tokens = adjusted[order], tokens[order]
        if not tokens.size or self._is_greedy:
            return int(tokens[0]) if tokens.size else None
        weights = self._weights(logits)
        lower_sums: tuple[float | None, ...] = (None,)
        if 0 < top_k <= tokens.size:
            weights, lower_sums = weights[:top_k], (0.0,)
        elif not is_adjusted and not top_k and best.scales[-1] == self.scale:
            total, best_sum = 1 / float(best.shares[-1]), float(weights.sum())
            lower_sums = tuple(max(0.0, total * factor - best_sum) for factor in (1 - SHARE_ERROR, 1 + SHARE_ERROR))
        sums = weights.cumsum(dtype=np.float64)
        choices = {self._index(weights, sums, each, share) for each in lower_sums}
        index = choices.pop() if len(choices) == 1 else None
        return None if index is None else int(tokens[index])

    def _from_all(self, logits: Logits, share: float) -> int:
        """Draw a token by the logits of all tokens [vocab_size], after penalties. Returns the token at which the
        cumulative probability exceeds `share`, a random number from 0 to 1.

        The best tokens come first, in descending order, then the others in the order of their ids. Most draws therefore
        need only a few tokens to be sorted.
        """
        top_k, tokens = self._sampling.top_k, None
        if 0 < top_k < logits.size:
            tokens = top_tokens(logits, top_k) if top_k <= MAX_SORTED else highest(logits, top_k)
            logits = logits[tokens]
        weights = self._weights(logits)
        first = top_tokens(logits, NUM_BEST)
        sums = weights[first].cumsum(dtype=np.float64)
        has_all = first.size < NUM_BEST or first.size == weights.size  # but for excluded tokens
        total = float(weights.sum())
        lower_sum = 0.0 if has_all else max(0.0, total - float(sums[-1]))
        index = self._index(weights[first], sums, lower_sum, share)
        index = self._index_in_tail(weights, total, first, sums, share) if index is None else int(first[index])
        return index if tokens is None else int(tokens[index])

    def _index_in_tail(
        self, weights: Logits, total: float, first: NDArray[np.int64], sums: NDArray[np.float64], share: float
    ) -> int:
        """Return the index of the drawn weight (probability times a factor) in `weights`, for a draw that the best
        weights alone do not determine. The order of the draw is: the best weights first, then the others by their
        index.

        `total` is the sum of all weights, `first` has the indexes of the best ones, `sums` their cumulative sums, and
        `share` is a random number from 0 to 1. If the drawn weight is beyond the top-p nucleus (arXiv 1904.09751), it
        is removed together with all lower weights, and the draw is repeated; the best weights are never removed. The
        weights in the nucleus thus keep their proportions, and nothing has to be sorted.
        """
        sampling = self._sampling
        lower_weights = weights.copy()
        lower_weights[first] = 0.0
        if sampling.min_p > 0.0:
            lower_weights *= weights >= np.float32(sampling.min_p) * weights[first[0]]
        while lower_sum := float(lower_weights.sum()):
            value = share * (sums[-1] + lower_sum)
            if value < sums[-1]:
                break
            index = _first_above(lower_weights, value - sums[-1])
            if sampling.top_p == 1.0:
                return index
            is_higher = _is_higher(weights, index)
            if float((weights * is_higher).sum()) < sampling.top_p * total:
                return index
            lower_weights *= is_higher
            share = self._random.random()
        return int(first[_above(sums, share * (sums[-1] + lower_sum))])

    def _index(self, weights: Logits, sums: NDArray[np.float64], lower_sum: float | None, share: float) -> int | None:
        """Return the index of the drawn weight (probability times a factor) among the best weights; None if a lower
        weight may be drawn, or if the sum of the lower weights is needed and unknown.

        `weights` has the best weights in descending order, and `sums` their cumulative sums. `lower_sum` is the sum of
        all lower weights, None if it is unknown. `share` is the random number of the draw, from 0 to 1.
        """
        sampling = self._sampling
        # How many pass; one more than there are here if lower ones may pass, too.
        count = weights.size + (lower_sum != 0.0)
        if sampling.top_p < 1.0:
            if lower_sum is None:
                return None
            count = min(count, 1 + int(sums.searchsorted(sampling.top_p * (sums[-1] + lower_sum))))
        if sampling.min_p > 0.0:
            num_likely = int(np.count_nonzero(weights >= np.float32(sampling.min_p) * weights[0]))
            count = min(count, num_likely) if num_likely < weights.size else count
        if count <= weights.size:
            return _above(sums[:count], share * sums[count - 1])
        if lower_sum is None or sampling.top_p < 1.0 or sampling.min_p > 0.0:
            return None
        value = share * (sums[-1] + lower_sum)
        return None if value >= sums[-1] else _above(sums, value)

    def _weights(self, logits: Logits) -> Logits:
        """Return the probabilities of tokens with these logits at the request's temperature, all multiplied by a common
        factor. The result has the precision of the logits, because doubles would take 4 times as long.
        """
        with np.errstate(over="ignore"):  # with a tiny temperature only the best remains: exp(-inf) is 0
            weights: Logits = logits - logits.max()
            weights /= np.float32(self._temperature)
            np.exp(weights, out=weights)
        return weights


def _first_above(weights: Logits, value: float) -> int:
    """Return the first index at which the cumulative sum of `weights` exceeds `value`; the last index with a positive
    weight if no sum exceeds it.

    The sums of blocks are compared first, and then the weights in one block, because cumulating all weights of a large
    vocabulary would take ten times as long.
    """
    starts = np.arange(0, weights.size, _SUMMED_BLOCK)
    blocks = np.add.reduceat(weights, starts).cumsum(dtype=np.float64)
    block = _above(blocks, value)
    start = int(starts[block])
    within = weights[start : start + _SUMMED_BLOCK].cumsum(dtype=np.float64)
    return start + _above(within, value - float(blocks[block - 1] if block else 0.0))


def _above(cumulative: NDArray[np.float64], value: float) -> int:
    """Return the first index at which `cumulative`, the cumulative sums of weights, exceeds `value`. The weight at this
    index is therefore positive.

    If `value` is not below the last sum, because of rounding, the result is the last index with a positive weight.
    """
    return int(cumulative.searchsorted(min(value, np.nextafter(cumulative[-1], 0.0)), side="right"))


def _is_higher(weights: Logits, index: int) -> NDArray[np.bool_]:
    """Return a mask that is true for each weight that comes before the weight at `index` in descending order. Of equal
    weights, the one with the lower index comes first.
    """
    is_higher: NDArray[np.bool_] = weights > weights[index]
    is_higher[:index] |= weights[:index] == weights[index]
    return is_higher


def top_tokens(logits: Logits, k: int) -> NDArray[np.int64]:
    """Return the ids of the tokens with the `k` highest logits, the highest first; of equal logits, the lowest id comes
    first.

    `logits` are those of all tokens [vocab_size]. Excluded tokens (minus infinity) are left out, so there may be fewer
    than `k`.
    """
    tokens = highest(logits, k)
    return tokens[np.argsort(-logits[tokens], kind="stable")]


def highest(logits: Logits, k: int) -> NDArray[np.int64]:
    """Return the ids of the tokens with the `k` highest logits, in ascending order of ids; of equal logits, those with
    the lowest ids are taken.

    `logits` are those of all tokens [vocab_size]. Excluded tokens (minus infinity) are left out, so there may be fewer
    than `k`. The logits are divided into groups. The k-th highest maximum of a group is a lower bound for the k-th
    highest logit, so only logits above it are compared. For 150,000 logits this takes a quarter of the time of a
    complete partition.
    """
    num_groups = logits.size // _GROUP
    bound = _LOWEST
    if num_groups > k:
        # Every num_groups-th logit is in the same group, so that the maximum is one of whole rows.
        groups = logits[: num_groups * _GROUP].reshape(_GROUP, num_groups)
        bound = max(bound, _kth_highest(groups.max(axis=0), k))
    tokens = np.flatnonzero(logits >= bound)
    if tokens.size <= k:
        return tokens
    candidates = logits[tokens]
    return tokens[_largest_indexes(candidates, _kth_highest(candidates, k), k)]


def _largest_indexes(values: Logits, minimum: np.float32, number: int) -> NDArray[np.int64]:
    """Return the indexes, in ascending order, of the `number` largest values. `minimum` is the smallest of these
    values; of several values equal to it, those with the lowest indexes are taken.
    """
    mask = values > minimum
    mask[np.flatnonzero(values == minimum)[: number - np.count_nonzero(mask)]] = True
    return np.flatnonzero(mask)


def _kth_highest(values: Logits, k: int) -> np.float32:
    highest: np.float32 = np.partition(values, values.size - k)[values.size - k]
    return highest
