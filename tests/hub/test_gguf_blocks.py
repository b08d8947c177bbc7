"""Blocks of GGUF files stand for the weights that gguf-py finds in them, for each type."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray

from genai_server.hub import gguf_blocks
from genai_server.hub.gguf_blocks import Blocks

# Where the numbers in 16 bits of a block are; the other bytes may have any value.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q4_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "MXFP4": (),
}
ROWS, BLOCKS = 6, 4


def random_rows(kind: str) -> NDArray[np.uint8]:
    """Rows of random blocks, of which some have no scale, or no minimum."""
    generator = np.random.default_rng(len(kind))
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rows = generator.integers(0, 256, (ROWS * BLOCKS, size), dtype=np.uint8)
    for number, place in enumerate(HALVES[kind]):
        values = generator.normal(0, 0.01, len(rows)).astype(np.float16)
        values[2 * number : 2 * number + 3] = 0
        rows[:, place : place + 2] = values.view(np.uint8).reshape(-1, 2)
    if kind == "MXFP4":
        rows[:, 0] = generator.integers(100, 130, len(rows))
    return rows.reshape(ROWS, -1)


def as_computed(blocks: Blocks) -> NDArray[np.float32]:
    """The weights as MatMulNBits computes them from what a graph holds."""
    packed, points = blocks.packed(), blocks.zero_points()
    codes = packed if blocks.bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
    middle = np.full_like(blocks.scales, 1 << (blocks.bits - 1)) if points is None else points
    wide = [np.repeat(values, blocks.block, axis=1) for values in (blocks.scales, middle)]
    weights: NDArray[np.float32] = wide[0] * (codes.astype(np.float32) - wide[1])
    return weights


@pytest.mark.parametrize("kind", HALVES)
def test_blocks_stand_for_the_files_weights(kind: str) -> None:
    rows = random_rows(kind)
    expected = dequantize(rows, gguf.GGMLQuantizationType[kind])
    blocks = gguf_blocks.read(kind, rows)
    assert (blocks.bits, blocks.block) == gguf_blocks.form(kind)
    assert int(blocks.codes.max()) < 1 << blocks.bits
    for found in (blocks.values(), as_computed(blocks)):
        assert found.dtype == np.float32
        # The sum of a product and an offset is rounded in another order than gguf-py's.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-7 * np.abs(expected).max())


def test_a_block_without_a_scale_keeps_its_minimum() -> None:
    block = np.array([0.0, -0.123], np.float16).view(np.uint8)
    blocks = gguf_blocks.read("Q4_1", np.concatenate([block, np.arange(16, dtype=np.uint8)])[None])
    points = blocks.zero_points()
    assert points is not None
    assert np.isfinite(points).all()
    assert (as_computed(blocks) == np.float32(np.float16(-0.123))).all()


def test_types_without_blocks_have_no_form_and_rows_are_joined() -> None:
    assert [gguf_blocks.form(kind) for kind in ("F32", "BF16", "Q5_1", "Q5_K", "IQ2_XXS")] == [None] * 5
    first, second = (gguf_blocks.read(kind, random_rows(kind)) for kind in ("Q4_0", "Q4_1"))
    joined = gguf_blocks.concatenated([first, second])
    np.testing.assert_array_equal(joined.values(), np.concatenate([first.values(), second.values()]))


def test_rounding_to_8_bits_errs_by_half_a_step() -> None:
    weights = np.random.default_rng(0).normal(0, 1, (3, 64)).astype(np.float32)
    weights[1, :32] = 0
    blocks = gguf_blocks.eight_bits(weights)
    steps = np.repeat(blocks.scales, 32, axis=1)
    assert (np.abs(blocks.values() - weights) <= 0.5001 * steps).all()
    assert (blocks.values()[1, :32] == 0).all()
