"""A widened Llama computes what it did: scripts/_models/widening.py."""

import numpy as np
from _models.widening import EPSILON, HEADS, KEY_HEADS, WIDTH, widening_to
from numpy.typing import NDArray

# As SmolLM2-135M, with blocks of a K-quant.
WIDE = widening_to(256, width=576, heads=9, key_heads=3)
NEW = 768


def norm(x: NDArray[np.float32], weights: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    """A norm of a Llama."""
    return np.asarray(x / np.sqrt((x**2).mean() + epsilon) * weights, np.float32)


def test_heads_and_width_grow_together_to_whole_blocks() -> None:
    factors = WIDE.settings
    assert [round(value * factors[name]) for name, value in ((WIDTH, 576), (HEADS, 9), (KEY_HEADS, 3))] == [NEW, 12, 4]


def test_a_width_of_whole_blocks_stays() -> None:
    assert widening_to(32, width=576, heads=9, key_heads=3).ratio == 1


def test_norms_and_products_keep_their_results() -> None:
    random = np.random.default_rng(3)
    x, weights = random.normal(size=(2, 576)).astype(np.float32)
    before = norm(x, weights, 1e-2)
    wide_x = np.pad(x, (0, NEW - 576))
    after = norm(wide_x, WIDE.widened(weights), 1e-2 * WIDE.settings[EPSILON])
    np.testing.assert_allclose(after[:576], before, rtol=1e-5)
    assert not after[576:].any()
    for rows, wide_rows in ((576, NEW), (192, 256), (1536, 1536)):
        matrix = random.normal(size=(rows, 576)).astype(np.float32)
        result = WIDE.widened(matrix) @ after
        assert len(result) == wide_rows
        np.testing.assert_allclose(result[:rows], matrix @ before, rtol=1e-3, atol=1e-3)
        assert not result[rows:].any()
