"""Pooling of token vectors."""

import numpy as np
import pytest

from genai_server.engine.runners.pooled import normalized, pool
from genai_server.engine.scores import Logits

STATES: Logits = np.arange(24, dtype=np.float32).reshape(2, 4, 3) - 6
# The first row has a masked token, the second ends early.
MASK = np.array([[0, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cls", [STATES[0, 1], STATES[1, 0]]),
        ("lasttoken", [STATES[0, 3], STATES[1, 1]]),
        ("max", [STATES[0, 3], STATES[1, 1]]),
        ("mean", [STATES[0, 1:].mean(axis=0), STATES[1, :2].mean(axis=0)]),
        ("mean_sqrt_len_tokens", [STATES[0, 1:].sum(axis=0) / 3**0.5, STATES[1, :2].sum(axis=0) / 2**0.5]),
        (
            "weightedmean",
            [
                (2 * STATES[0, 1] + 3 * STATES[0, 2] + 4 * STATES[0, 3]) / 9,
                (STATES[1, 0] + 2 * STATES[1, 1]) / 3,
            ],
        ),
    ],
)
def test_only_unmasked_tokens_are_pooled(mode: str, expected: list[Logits]) -> None:
    assert np.allclose(pool(STATES, MASK, [mode]), np.stack(expected), rtol=1e-6)


def test_several_modes_are_joined_in_their_order() -> None:
    joined = pool(STATES, MASK, ["max", "cls"])
    np.testing.assert_array_equal(joined, np.hstack([pool(STATES, MASK, ["max"]), pool(STATES, MASK, ["cls"])]))


def test_vectors_get_length_1_and_zeros_stay() -> None:
    expected = np.array([[0.6, 0.8], [0, 0]], np.float32)
    assert np.allclose(normalized(np.array([[3, 4], [0, 0]], np.float32)), expected)
