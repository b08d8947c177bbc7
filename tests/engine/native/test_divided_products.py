"""Products with matrices of few outputs, whose inputs threads share: the sums of parts, added in order."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.graph_rewriting.packed_weights import PANEL, FloatMatrix, Matrix, QuantizedMatrix
from tests.engine.native.packed_product import activations, matrix, product

pytestmark = pytest.mark.usefixtures("instruction_set")
# As in native/src/products.cpp.
FEW_PANELS, MAX_PARTS, INPUTS_OF_PART, ROUNDED_INPUTS_OF_PART = 16, 64, 1024, 2048
# Inputs that are not divided: of rounded activations a block, and otherwise so many.
BLOCK, INPUT_BLOCK = 32, 128
# Threads share the parts of up to 256 rows, or of fewer with rounded activations.
ROWS = (1, 5, 37, 64, 150, 300)


def borders(num_outputs: int, num_inputs: int, *, is_rounded: bool) -> list[int]:
    """Where the parts begin, and where the last one ends."""
    unit, least = (BLOCK, ROUNDED_INPUTS_OF_PART) if is_rounded else (INPUT_BLOCK, INPUTS_OF_PART)
    panels, units = -(-num_outputs // PANEL), -(-num_inputs // unit)
    parts = max(1, min(MAX_PARTS // panels, num_inputs // least)) if panels < FEW_PANELS else 1
    return [min(units * part // parts * unit, num_inputs) for part in range(parts)] + [num_inputs]


def part_of(given: Matrix, first: int, end: int) -> Matrix:
    """The weights of some inputs, from a multiple of the block on."""
    if isinstance(given, FloatMatrix):
        return FloatMatrix(given.weights[:, first:end])
    blocks = slice(first // given.block, -(-end // given.block))
    return given._replace(
        weights=given.weights[:, blocks.start * given.block : blocks.stop * given.block],
        scales=given.scales[:, blocks],
        offsets=None if given.offsets is None else given.offsets[:, blocks],
        num_inputs=end - first,
    )


FORMS = [
    {"bits": 4},
    {"bits": 8},
    {"bits": 4, "activation_bits": 32},
    {"bits": 8, "activation_bits": 32},
    {"bits": 16},
    {"bits": 32},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(64, 6200), (100, 4096), (896, 4100)])
def test_a_result_is_the_sum_of_its_parts_in_order_with_any_rows_and_threads(
    num_outputs: int, num_inputs: int, form: Mapping[str, int]
) -> None:
    bits, is_rounded = form["bits"], form["bits"] <= 8 and "activation_bits" not in form
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(num_outputs, np.float32)
    given: Matrix
    if bits > 8:
        weights = rng.standard_normal((num_outputs, num_inputs), np.float32)
        given = FloatMatrix(weights.astype(np.float16 if bits == 16 else np.float32))
    else:
        given = matrix(bits, num_outputs, num_inputs, BLOCK, offsets=True)
    x = activations(max(ROWS), num_inputs)
    places = borders(num_outputs, num_inputs, is_rounded=is_rounded)
    assert len(places) > 2
    expected: NDArray[np.float32] | None = None
    for first, end in zip(places, places[1:], strict=False):
        assert len(borders(num_outputs, end - first, is_rounded=is_rounded)) == 2, "a part is itself divided"
        run = product(part_of(given, first, end), form)
        (sums,) = run.run(None, {"x": np.ascontiguousarray(x[:, first:end])})
        expected = sums if expected is None else expected + sums
    assert expected is not None
    expected += bias
    for threads in (1, 2, 5):
        run = product(given, form, bias=bias, threads=threads)
        for rows in ROWS:
            (found,) = run.run(None, {"x": x[len(x) - rows :]})
            assert np.array_equal(found, expected[len(x) - rows :]), (threads, rows)


@pytest.mark.parametrize(
    ("bits", "block", "cuts", "is_divided"),
    [(8, 4096, [0, 4096], False), (4, BLOCK, [0, 2048, 4096], True)],
    ids=["a block has one scale and one sum of integers", "many blocks"],
)
def test_neither_a_block_nor_a_matrix_with_many_outputs_is_divided(
    bits: int, block: int, cuts: list[int], is_divided: bool
) -> None:
    given, x = matrix(bits, PANEL, 4096, block), activations(3, 4096)

    def results(of: Matrix, first: int = 0, end: int = 4096) -> NDArray[np.float32]:
        feed = {"x": np.ascontiguousarray(x[:, first:end])}
        found: NDArray[np.float32] = product(of).run(None, feed)[0]
        return found

    narrow, wide = results(given), results(_with_more_outputs(given))[:, :PANEL]
    parts = [results(part_of(given, first, end), first, end) for first, end in pairwise(cuts)]
    assert np.array_equal(narrow, sum(parts))
    assert np.array_equal(narrow, wide) != is_divided


def _with_more_outputs(given: QuantizedMatrix) -> QuantizedMatrix:
    """The same matrix repeated, which has so many panels that it is not divided."""
    weights, scales = np.tile(given.weights, (FEW_PANELS, 1)), np.tile(given.scales, (FEW_PANELS, 1))
    return given._replace(weights=weights, scales=scales)
