"""The sampler: the effect of each filter, the distribution of draws, and their reproducibility by the seed.

The random tests have fixed seeds, so their results are always the same; their bounds are several standard deviations.
"""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.engine.sampling import sampler
from genai_server.engine.sampling.sampler import MAX_SORTED, highest, top_tokens
from genai_server.engine.scores import Best, Logits, Scores
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.messages.generation_request import Sampling

SEED = 20_240_607


class Sampler(sampler.Sampler):
    """A sampler of plain logits [vocab_size]."""

    def sample(self, logits: Logits, **how: Any) -> int:  # type: ignore[override]
        return super().sample(Scores(logits[np.newaxis]), **how)


def _logits(*values: float) -> Logits:
    return np.array(values, np.float32)


def _of_probabilities(*values: float) -> Logits:
    return _logits(*(math.log(value) for value in values))


def _draws(logits: Logits, sampling: Sampling, count: int = 400) -> list[int]:
    sampler = Sampler(sampling, [0])
    return [sampler.sample(logits) for _ in range(count)]


def _kept(logits: Logits, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """All tokens that are ever drawn."""
    return set(_draws(logits, Sampling(temperature, top_k, top_p, min_p, seed=SEED)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_fail_the_request(value: float, temperature: float) -> None:
    logits = np.zeros(1000, np.float32)
    logits[700] = value
    shares, scales = np.array([[np.nan], [1.0]], np.float32)
    best = Best(logits[np.newaxis, :64], np.arange(64)[np.newaxis], shares, scales, range(1), _none)
    for scores in (Scores(logits[np.newaxis]), Scores(best=best)):
        with pytest.raises(RunnerFailed, match="not finite"):
            sampler.Sampler(Sampling(temperature, seed=SEED), [0]).sample(scores)


def _none(places: range) -> Logits:
    raise AssertionError("nothing is copied from a device")


# greedy


def test_temperature_zero_is_greedy_whatever_the_other_fields() -> None:
    sampling = Sampling(0.0, top_k=3, top_p=0.1, min_p=0.9, seed=SEED)
    assert _draws(_logits(0.1, -5, 7, 6.99), sampling, 20) == [2] * 20


def test_temperature_zero_takes_the_lowest_id_of_a_tie() -> None:
    assert _draws(_logits(1, 3, 3, 3), Sampling(), 5) == [1] * 5


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 1e-308, 5e-324])
def test_temperature_close_to_zero_is_greedy(temperature: float) -> None:
    assert _kept(_logits(10, 30, -80, 29), temperature) == {1}


# the distribution


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.5, 0.25, 0.15, 0.1]), (2.0, [0.363, 0.257, 0.199, 0.162]), (0.5, [0.725, 0.181, 0.065, 0.029])],
)
def test_draws_follow_the_softmax_at_the_temperature(temperature: float, expected: list[float]) -> None:
    expected = [value / sum(expected) for value in expected]
    counts = Counter(_draws(_of_probabilities(0.5, 0.25, 0.15, 0.1), Sampling(temperature, seed=SEED), 4000))
    assert [counts[token] / 4000 for token in range(4)] == pytest.approx(expected, abs=0.03)


def test_large_logits_do_not_overflow() -> None:
    assert _kept(_logits(3e38, 3e38, -3e38)) == {0, 1}


@pytest.mark.parametrize("size", [256, 5000])
def test_large_vocabulary_is_sampled_by_its_probabilities(size: int) -> None:
    expected = {0: 0.1, size // 2: 0.4, size - 2: 0.2, size - 1: 0.3}
    logits = np.full(size, -np.inf, np.float32)
    logits[list(expected)] = np.log(list(expected.values()))
    counts = Counter(_draws(logits, Sampling(1.0, seed=SEED), 4000))
    assert set(counts) == set(expected)
    assert [counts[token] / 4000 for token in expected] == pytest.approx(list(expected.values()), abs=0.03)


def test_flat_vocabulary_is_sampled_in_its_order() -> None:
    class Even:
        """Random numbers spaced evenly from 0 to just below 1."""

        def __init__(self) -> None:
            self.drawn = iter([*np.linspace(0, 1, 1000, endpoint=False), np.nextafter(1.0, 0.0)])

        def random(self) -> float:
            return float(next(self.drawn))

    sampler = Sampler(Sampling(1.0), [0])
    sampler._random = Even()  # type: ignore[assignment]
    logits = np.zeros(1000, np.float32)
    assert [sampler.sample(logits) for _ in range(1001)] == [*range(1000), 999]


# the filters


EQUAL = _logits(1, 1, 1, 1)
RISING = _logits(1.1, 0.9, 1.0, 1.2)
FALLING = _of_probabilities(0.4, 0.3, 0.2, 0.1)
HALVES = _of_probabilities(0.5, 0.25, 0.125)


@pytest.mark.parametrize(
    ("logits", "fields", "kept"),
    [
        (RISING, {"top_k": 1, "temperature": 2.0}, {3}),
        (RISING, {"top_k": 2, "temperature": 2.0}, {3, 0}),
        (RISING, {"top_k": 3, "temperature": 2.0}, {3, 0, 2}),
        (RISING, {"top_k": 4, "temperature": 2.0}, {0, 1, 2, 3}),
        (RISING, {"top_k": 9, "temperature": 2.0}, {0, 1, 2, 3}),
        (_logits(0, 0, 0, 0, 0), {"top_k": 0}, {0, 1, 2, 3, 4}),
        # top_p takes the most likely first, after the temperature, and counts shares among the top_k: 0.4 of the
        # total is 0.57 of the remaining two.
        (_of_probabilities(0.1, 0.5, 0.15, 0.25), {"top_p": 0.7}, {1, 3}),
        (_of_probabilities(0.6, 0.3, 0.1), {"top_p": 0.8}, {0, 1}),
        (_of_probabilities(0.6, 0.3, 0.1), {"top_p": 0.8, "temperature": 0.25}, {0}),
        (FALLING, {"top_k": 2, "top_p": 0.5}, {0}),
        # min_p is relative to the most likely token; 1 keeps its ties.
        (HALVES, {"min_p": 0.0}, {0, 1, 2}),
        (HALVES, {"min_p": 0.2}, {0, 1, 2}),
        (HALVES, {"min_p": 0.4}, {0, 1}),
        (HALVES, {"min_p": 0.6}, {0}),
        (HALVES, {"min_p": 1.0}, {0}),
        (_logits(1, 2, 1.99, 2), {"min_p": 1.0}, {1, 3}),
        # The stricter of two filters decides.
        (FALLING, {"top_p": 0.95, "min_p": 0.6}, {0, 1}),
        (FALLING, {"top_p": 0.5, "min_p": 0.1}, {0, 1}),
        (FALLING, {"top_k": 3, "min_p": 0.1}, {0, 1, 2}),
    ],
)
def test_filters_keep_the_most_likely_tokens(logits: Logits, fields: dict[str, Any], kept: set[int]) -> None:
    assert _kept(logits, **fields) == kept


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, 1), (0.01, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.51, 3), (0.76, 4), (1.0, 4)]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: int) -> None:
    # Four equal tokens: quarters are exact in binary, and so is the boundary.
    assert len(_kept(EQUAL, top_p=top_p)) == kept


def test_top_k_keeps_no_more_than_k_of_a_tie() -> None:
    kept = _kept(_logits(0, 2, 2, 2, 2, 1), top_k=3)
    assert len(kept) == 3
    assert kept < {1, 2, 3, 4}


# the repetition penalty


@pytest.mark.parametrize(
    ("logits", "prompt", "penalty", "tokens"),
    [
        # It divides positive logits and multiplies negative ones.
        ([2, 1.5], [0], 1.2, [0]),
        ([2, 1.5], [0], 1.4, [1]),
        ([-1, -1.5], [0], 1.4, [0]),
        ([-1, -1.5], [0], 1.6, [1]),
        ([1.5, 2], [0], 0.5, [0]),
        ([2, 1.5], [0, 0, 0], 1.2, [0]),  # once, however often the token was there
        ([2.0, 1.8, 1.5, 0.1], [3], 2.0, [0, 1, 2, 0]),  # the answer's tokens, too
        ([-np.inf, -50], [0, 1], 1.5, [1]),
    ],
)
def test_repetition_penalty_changes_the_best_token(
    logits: list[float], prompt: list[int], penalty: float, tokens: list[int]
) -> None:
    sampler = Sampler(Sampling(repetition_penalty=penalty), prompt)
    assert [sampler.sample(_logits(*logits)) for _ in tokens] == tokens


def test_the_penalty_comes_before_the_filters() -> None:
    sampler = Sampler(Sampling(1.0, top_k=1, repetition_penalty=2.0, seed=SEED), [0])
    assert sampler.sample(_logits(2, 1.5, 0)) == 1


# reproducibility


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_logits_are_left_as_they_are(temperature: float) -> None:
    logits = _logits(2, -1, 0.5, 3)
    logits.setflags(write=False)
    sampler = Sampler(Sampling(temperature, 3, 0.9, 0.01, 1.3, SEED), [0, 1])
    for _ in range(3):
        sampler.sample(logits)
    assert logits.tolist() == [2, -1, 0.5, 3]


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_same_seed_gives_the_same_tokens(seed: int) -> None:
    sampling = Sampling(1.0, top_k=50, top_p=0.95, repetition_penalty=1.1, seed=seed)
    logits = np.random.default_rng(1).normal(size=200).astype(np.float32)
    assert _draws(logits, sampling, 64) == _draws(logits, sampling, 64)


@pytest.mark.parametrize("seeds", [(1, 2), (None, None)])
def test_without_the_same_seed_other_tokens_are_drawn(seeds: tuple[int | None, int | None]) -> None:
    # The same of 1000 tokens 32 times in a row has probability 10 to the power of -96.
    first, second = (_draws(np.zeros(1000, np.float32), Sampling(1.0, seed=seed), 32) for seed in seeds)
    assert first != second


# operations before the temperature


@pytest.mark.parametrize("how", [{"allowed": np.array([False, True, False, True])}, {"banned": [0, 2]}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_are_chosen(temperature: float, how: dict[str, Any]) -> None:
    sampler = Sampler(Sampling(temperature, seed=SEED), [0])
    assert {sampler.sample(_logits(9, 1, 9, 0.5), **how) for _ in range(50)} <= {1, 3}


def test_filters_consider_only_allowed_tokens() -> None:
    # A few tokens of a large vocabulary, as grammars allow.
    logits = np.random.default_rng(1).normal(size=40_000).astype(np.float32)
    allowed = np.zeros(logits.size, np.bool_)
    allowed[[5, 700, 39_999]] = True
    for sampling in (
        Sampling(1.0, top_k=50, seed=1),
        Sampling(1.0, top_p=0.99, seed=1),
        Sampling(1.0, min_p=0.001, seed=1),
        Sampling(1.0, seed=1),
    ):
        sampler = Sampler(sampling, [0])
        assert {sampler.sample(logits, allowed=allowed) for _ in range(300)} == {5, 700, 39_999}


@pytest.mark.parametrize(
    ("fields", "logits", "how", "token"),
    [
        ({"logit_bias": {0: 2.5}}, [1, 2, 3], {}, 0),
        ({"logit_bias": {2: -100.0}}, [1, 2, 3], {}, 1),
        ({"logit_bias": {0: 100.0}}, [1, 2, 3], {}, 0),
        # It allows nothing that is ruled out.
        ({"logit_bias": {0: 50.0}}, [3, 2, 1], {"banned": [0]}, 1),
        ({"logit_bias": {0: 50.0}}, [3, 2, 1], {"allowed": np.array([False, False, True])}, 2),
        # It comes before the penalty: 1 + 3 halved is 2, which is more than 1.9; 1 halved and 3 added would be 3.5.
        ({"logit_bias": {0: 3.0}, "repetition_penalty": 2.0}, [1, 1.9], {}, 0),
        ({"logit_bias": {0: 3.0}, "repetition_penalty": 2.0}, [1, 3], {}, 1),
    ],
)
def test_a_bias_changes_the_choice_and_leaves_the_logits(
    fields: dict[str, Any], logits: list[float], how: dict[str, Any], token: int
) -> None:
    given = _logits(*logits)
    assert Sampler(Sampling(**fields), [0]).sample(given, **how) == token
    assert given.tolist() == _logits(*logits).tolist()


def test_a_bias_that_leaves_nothing_is_refused_by_name() -> None:
    sampler = Sampler(Sampling(logit_bias={0: 100.0}), [0])
    with pytest.raises(InvalidField, match="logit_bias") as raised:
        sampler.sample(_logits(3, 2, 1), banned=[0])
    assert raised.value.param == "logit_bias"


# top tokens


TIED = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=300)


@given(TIED, st.integers(1, 300))
def test_top_tokens_equal_those_of_a_stable_sort(values: list[float], k: int) -> None:
    expected = sorted((token for token, value in enumerate(values) if value > -np.inf), key=lambda t: -values[t])
    assert top_tokens(_logits(*values), k).tolist() == expected[:k]


@given(TIED, st.integers(1, 300))
def test_the_highest_are_the_top_tokens_by_their_ids(values: list[float], k: int) -> None:
    logits = _logits(*values)
    assert highest(logits, k).tolist() == sorted(top_tokens(logits, k).tolist())


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_p": 0.9, "min_p": 0.5}])
@pytest.mark.parametrize("top_k", [1, 5, 7])
def test_filters_keep_the_same_tokens_without_sorting(
    monkeypatch: pytest.MonkeyPatch, top_k: int, fields: dict[str, float]
) -> None:
    logits = _logits(1.0, 2.0, 0.5, 2.0, 1.0, -np.inf)
    kept = _kept(logits, 1.0, top_k, **fields)
    monkeypatch.setattr(sampler, "MAX_SORTED", 0)
    assert _kept(logits, 1.0, top_k, **fields) == kept


@pytest.mark.parametrize("top_k", [3999, 4096, 4097, 20_000, 127_999, 128_000, 1_000_000])
def test_top_k_never_sorts_a_large_vocabulary(monkeypatch: pytest.MonkeyPatch, top_k: int) -> None:
    sizes: list[int] = []
    argsort = np.argsort

    def noted(values: Any, **how: Any) -> Any:
        sizes.append(len(values))
        return argsort(values, **how)

    monkeypatch.setattr(np, "argsort", noted)
    logits = np.random.default_rng(SEED).normal(size=128_000).astype(np.float32)
    Sampler(Sampling(1.0, top_k=top_k, seed=SEED), [0]).sample(logits)
    assert max(sizes, default=0) <= MAX_SORTED


# draws beyond the best tokens


@pytest.mark.parametrize(
    "fields", [{}, {"top_p": 0.95}, {"min_p": 0.05}, {"top_p": 0.5, "min_p": 0.01}, {"top_k": 9, "top_p": 0.8}]
)
@pytest.mark.parametrize("spread", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_draws_beyond_the_best_keep_their_probabilities(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], spread: float
) -> None:
    monkeypatch.setattr(sampler, "NUM_BEST", 3)
    logits = np.random.default_rng(SEED).normal(size=40).astype(np.float32) * np.float32(spread)
    order = np.argsort(-logits, kind="stable")[: fields.get("top_k", 40)]
    weights = np.exp(logits[order].astype(np.float64) - logits.max())
    before = np.cumsum(weights) - weights
    is_kept = before < fields.get("top_p", 1.0) * weights.sum()
    is_kept &= weights >= fields.get("min_p", 0.0)
    expected = dict(zip(order[is_kept].tolist(), (weights[is_kept] / weights[is_kept].sum()).tolist(), strict=True))
    number = 3_000
    counts = Counter(_draws(logits, Sampling(1.0, seed=SEED, **fields), number))
    assert set(counts) <= set(expected)
    squared = sum((counts[token] - number * share) ** 2 / (number * share) for token, share in expected.items())
    assert squared < len(expected) - 1 + 4 * math.sqrt(2 * len(expected))


@given(
    st.lists(st.sampled_from([-np.inf, -20.0, -2.0, -1.0, 0.0]) | st.floats(-8, 0, width=32), min_size=70).filter(
        lambda values: max(values) > -np.inf
    ),
    st.floats(0.01, 0.99),
)
def test_top_p_draws_only_what_a_sorted_sum_takes(values: list[float], top_p: float) -> None:
    logits = _logits(*values)
    weights = np.exp(logits - logits.max())
    order = np.argsort(-logits, kind="stable")
    before = np.cumsum(weights[order], dtype=np.float64) - weights[order]
    # If the sum is reached only up to rounding, both results are right.
    nucleus = set(order[before < top_p * float(weights.sum(dtype=np.float64)) * (1 + 1e-6)].tolist())
    assert set(_draws(logits, Sampling(1.0, top_p=top_p, seed=SEED), 20)) <= nucleus


def test_top_p_of_a_flat_vocabulary_keeps_the_lowest_ids() -> None:
    drawn = _draws(np.zeros(100_000, np.float32), Sampling(1.0, top_p=0.25, seed=SEED), 100)
    assert max(drawn) < 25_000 < 2 * max(drawn)
