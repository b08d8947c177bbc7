"""Logit bias and penalties, compared with the plain formulas, for random prompts and answers."""

import math
from collections import Counter

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from genai_server.engine.sampling.sampler import Bias, Penalties
from genai_server.engine.scores import Logits
from genai_server.messages.generation_request import Sampling

VOCAB = 12

tokens = st.integers(0, VOCAB - 1)
scores = st.lists(st.floats(-50, 50, width=32) | st.just(-math.inf), min_size=VOCAB, max_size=VOCAB)
penalties = st.floats(-2, 2)


def biased(logits: Logits, biases: dict[int, float]) -> Logits:
    Bias(biases).apply(logits)
    return logits


ANY = -1  # as many last tokens as there are


@hypothesis.settings(max_examples=3 * hypothesis.settings().max_examples)
@given(
    scores,
    st.lists(tokens, min_size=1, max_size=30),
    st.lists(tokens, max_size=30),
    st.just(ANY) | st.integers(1, 40),
    st.just(1.0) | st.floats(0.1, 10),
    st.just(0.0) | penalties,
    st.just(0.0) | penalties,
)
def test_penalties_look_at_the_last_tokens_alone(
    values: list[float],
    prompt: list[int],
    answer: list[int],
    last: int,
    theta: float,
    frequency: float,
    presence: float,
) -> None:
    found = Penalties(Sampling(0, 0, 1.0, 0, theta, None, frequency, presence, repeat_last_n=last), prompt)
    everything = [(token, False) for token in prompt] + [(token, True) for token in answer]
    for token in answer:
        found.count(token)
    logits = np.array(values, np.float32)
    found.apply(logits)
    counted = everything if last == ANY else everything[-last:]
    seen = {token for token, _ in counted}
    count = Counter(token for token, is_of_answer in counted if is_of_answer)
    # CTRL's penalty counts the prompt, those of OpenAI the answer alone.
    expected = [x if j not in seen else x / theta if x > 0 else x * theta for j, x in enumerate(values)]
    expected = [x - count[j] * frequency - float(count[j] > 0) * presence for j, x in enumerate(expected)]
    assert logits == pytest.approx(np.array(expected), rel=1e-5, abs=1e-5)


def test_the_repetition_penalty_comes_before_the_other_two() -> None:
    penalties = Penalties(Sampling(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25), [0])
    for _ in range(3):
        penalties.count(1)
    logits = np.array([8, 8, 8], np.float32)
    penalties.apply(logits)
    assert logits.tolist() == [4.0, 4 - 1.5 - 0.25, 8.0]


@pytest.mark.parametrize(
    "sampling", [Sampling(repetition_penalty=1.1), Sampling(frequency_penalty=-0.1), Sampling(presence_penalty=0.1)]
)
def test_each_penalty_by_itself_counts_as_one(sampling: Sampling) -> None:
    assert sampling.penalizes
    assert not structs.replace(sampling, repeat_last_n=0).penalizes


def test_sampling_without_penalties_does_not_penalize() -> None:
    assert not Sampling(1.0, 5, 0.5, 0.1, logit_bias={1: 5.0}).penalizes


# the bias


@given(scores, st.dictionaries(tokens, st.floats(-99, 99), max_size=VOCAB))
def test_a_bias_is_added(values: list[float], biases: dict[int, float]) -> None:
    logits = biased(np.array(values, np.float32), biases)
    expected = [value + biases.get(token, 0.0) for token, value in enumerate(values)]
    assert logits == pytest.approx(np.array(expected), rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("bias", [-100.0, -101.0, -1e30, -math.inf])
def test_a_bias_of_minus_hundred_and_less_is_a_ban(bias: float) -> None:
    assert biased(np.array([3, 2, 1], np.float32), {0: bias, 2: 1.0}).tolist() == [-math.inf, 2, 2]


@pytest.mark.parametrize("bias", [100.0, 150.0, math.inf])
def test_bias_of_100_or_more_leaves_only_these_tokens(bias: float) -> None:
    logits = biased(np.array([1, 2, 3, 4], np.float32), {0: bias, 1: 100.0, 2: 99.0, 3: -100.0})
    assert logits.tolist() == [1, 2, -math.inf, -math.inf]
