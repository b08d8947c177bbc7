"""Log probabilities, compared with a plain softmax in double precision."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.engine.sampling.continuation import token_logprob, token_logprobs
from genai_server.engine.scores import Logits, Scores


def log_softmax(logits: Logits) -> list[float]:
    values = logits.astype(np.float64)
    return [float(v) for v in values - values.max() - np.log(np.sum(np.exp(values - values.max())))]


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=100), st.data())
def test_a_tokens_log_probability_is_its_log_softmax(values: list[float], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(values) - 1))
    logits = np.array(values, np.float32)
    found = token_logprob(Scores(logits[np.newaxis]), token, 0)
    assert found.token == token
    assert found.logprob == pytest.approx(log_softmax(logits)[token], rel=1e-5, abs=1e-5)
    assert found.top == []


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=100), st.integers(1, 20))
def test_most_likely_tokens_are_sorted_by_logprob_then_id(values: list[float], num_top: int) -> None:
    logits = np.array(values, np.float32)
    expected = log_softmax(logits)
    found = token_logprob(Scores(logits[np.newaxis]), 0, num_top).top
    assert [token for token, _ in found] == sorted(range(len(values)), key=lambda t: -logits[t])[:num_top]
    assert [logprob for _, logprob in found] == pytest.approx([expected[token] for token, _ in found], abs=1e-5)


def test_large_vocabulary_keeps_the_precision_of_the_sum() -> None:
    logits = np.zeros(150_000, np.float32)
    assert token_logprob(Scores(logits[np.newaxis]), 7, 0).logprob == pytest.approx(-math.log(150_000), abs=1e-6)


def test_excluded_token_has_no_probability_and_is_not_listed() -> None:
    logits = np.array([0.0, -np.inf, 0.0], np.float32)
    found = token_logprob(Scores(logits[np.newaxis]), 1, 3)
    assert found.logprob == -math.inf
    assert [token for token, _ in found.top] == [0, 2]


def test_each_position_scores_its_own_token() -> None:
    positions = np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32)
    found = token_logprobs(positions, [4, 0, 49], 2)
    assert found == [token_logprob(Scores(positions[i : i + 1]), token, 2) for i, token in enumerate([4, 0, 49])]
