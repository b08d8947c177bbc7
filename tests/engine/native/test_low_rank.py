"""The small matrices of adapters against a reference in 64 bits, and bitwise against themselves."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from genai_server.engine.graph_rewriting.packed_products import DOMAIN
from tests.engine.native.operator_session import run_in_place, session, starts

pytestmark = pytest.mark.usefixtures("instruction_set")
INPUTS, OUTPUTS, RANKS = 75, 50, 40
# A row of a pass: the number of its tokens, its first rank, and the number of its ranks.
Row = tuple[int, int, int]
ROWS: list[Row] = [(1, 0, 16), (70, 16, 7), (3, 0, 0), (5, 23, 17), (4, 0, 16)]


def matrices() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    return {
        "a": rng.standard_normal((RANKS, INPUTS), np.float32),
        "b": rng.standard_normal((RANKS, OUTPUTS), np.float32),
    }


def run(rows: Sequence[Row], tokens: NDArray[np.float32], threads: int = 2) -> NDArray[np.float32]:
    """The results [tokens, outputs]."""
    inputs = ["x", "a", "b", "starts", "ranks", "num_ranks"]
    on = session(helper.make_node("RaggedLowRank", inputs, ["y"], domain=DOMAIN), threads=threads)
    lengths, firsts, numbers = zip(*rows, strict=True)
    places = {"starts": starts(lengths), "ranks": firsts, "num_ranks": numbers}
    return run_in_place(on, places, {"x": tokens[np.newaxis], **matrices()})


def drawn(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((number, INPUTS), np.float32)


def test_each_row_has_the_ranks_of_its_own_adapter() -> None:
    tokens = drawn(sum(number for number, *_ in ROWS) + 2)
    found, given = run(ROWS, tokens), matrices()
    first = 0
    for number, rank, num_ranks in ROWS:
        own = slice(rank, rank + num_ranks)
        expected = tokens[first : first + number].astype(np.float64) @ given["a"][own].T @ given["b"][own]
        assert np.abs(found[first : first + number] - expected).max() < 1e-4
        first += number
    assert (found[first:] == 0).all()  # tokens of no row


def test_a_token_is_bitwise_the_same_next_to_any_others() -> None:
    tokens = drawn(sum(number for number, *_ in ROWS))
    found = run(ROWS, tokens, threads=1)
    first = 0
    for row in ROWS:
        number, rank, num_ranks = row
        for cut in {1, number // 2, number}:
            parts = [(cut, rank, num_ranks), (number - cut, rank, num_ranks)]
            assert np.array_equal(run(parts, tokens[first : first + number], 3), found[first : first + number])
        first += number


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(2, 30, 11)], "the ranks of row 0 are 30 to 41 of 40"),
        ([(2, -1, 2)], "the ranks of row 0 are -1 to 1 of 40"),
        ([(3, 0, 2)], "the tokens of row 0 are 0 to 3 of 2"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: list[Row], message: str) -> None:
    with pytest.raises(Exception, match=message):
        run(rows, drawn(2))
