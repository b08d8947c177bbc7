"""Where the tokens of a pass lie."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.graph_rewriting import paged_attention
from genai_server.engine.graph_rewriting.lora import NUM_RANKS, RANKS
from genai_server.engine.graph_rewriting.native_attention import COMMITTED, PASTS, SLOTS, STARTS
from genai_server.engine.graph_rewriting.ragged import ROPE_POSITIONS, SCALES, WANTED
from genai_server.engine.kv_cache.layout import Layout, Row, lay_out
from genai_server.engine.model.graph_reader import read_decoder_graph
from tests.running_server import DEMO

GRAPH = read_decoder_graph(DEMO)
PAGED = replace(GRAPH, block_tokens=16)


def test_rows_lie_one_behind_another_without_padding() -> None:
    rows = [Row(4, 10, [41, 42]), Row(0, 0, list(range(100, 120))), Row(2, 7, [21])]
    layout = lay_out(rows, GRAPH)
    assert (layout.rows, layout.num_tokens) == (rows, 23)
    assert layout.ids.tolist() == [[41, 42, *range(100, 120), 21]]
    assert layout.positions.tolist() == [[10, 11, *range(20), 7]]
    assert layout.tokens == [slice(0, 2), slice(2, 22), slice(22, 23)]
    told = {name: layout.inputs[name] for name in (STARTS, PASTS, SLOTS, COMMITTED)}
    assert {array.dtype for array in told.values()} == {np.dtype(np.int32)}
    assert {name: array.tolist() for name, array in told.items()} == {
        STARTS: [0, 2, 22, 23],
        PASTS: [10, 0, 7],
        SLOTS: [4, 0, 2],
        COMMITTED: [2, 20, 1],
    }


def test_only_the_wanted_logits_of_a_row_are_computed_each_with_the_rows_scale() -> None:
    rows = [
        Row(1, 3, [5, 6, 7], num_logits=2, scale=0.5),
        Row(2, 0, [1] * 4, num_logits=4),
        Row(3, 0, [2] * 6, scale=2),
    ]
    layout = lay_out(rows, GRAPH)
    assert layout.inputs[WANTED].tolist() == [1, 2, 3, 4, 5, 6, 12]
    assert layout.inputs[SCALES].tolist() == [[0.5]] * 2 + [[1.0]] * 4 + [[2.0]]
    assert layout.num_logits == 7
    assert layout.logits == [slice(0, 2), slice(2, 6), slice(6, 7)]


@pytest.mark.parametrize(("num_drafted", "has_drafts"), [((0, 0), False), ((0, 2), True), ((3, 1), True)])
def test_drafted_tokens_change_no_state(num_drafted: tuple[int, int], has_drafts: bool) -> None:
    rows = [Row(number, 5, [1] * 4, num_drafted=drafted) for number, drafted in enumerate(num_drafted)]
    layout = lay_out(rows, GRAPH)
    assert layout.has_drafts == has_drafts
    assert layout.inputs[COMMITTED].tolist() == [4 - drafted for drafted in num_drafted]


def test_long_rows_have_other_places_in_the_rope() -> None:
    rows = [Row(0, 5, [1]), Row(1, 130, [2], is_long=True), Row(2, 126, [3] * 20, is_long=True)]
    layout = lay_out(rows, replace(GRAPH, switches_at=128))
    assert layout.positions.tolist() == [[5, 130, *range(126, 146)]]
    assert layout.inputs[ROPE_POSITIONS].tolist() == [[5, 258, *range(254, 274)]]
    assert ROPE_POSITIONS not in lay_out(rows, GRAPH).inputs


def test_each_row_has_the_ranks_of_its_adapter() -> None:
    rows = [Row(0, 5, [1], ranks=(4, 2)), Row(1, 5, [1] * 20), Row(2, 5, [1] * 3, ranks=(7, 1))]
    inputs = lay_out(rows, GRAPH).inputs
    assert inputs[RANKS].tolist() == [4, 0, 7]
    assert inputs[NUM_RANKS].tolist() == [2, 0, 1]


def test_features_and_positions_of_images_are_those_of_their_tokens() -> None:
    own = np.array([[3, 3, 3], [3, 3, 4], [3, 4, 3]])
    features = [np.full((count, 8), count, np.float32) for count in (3, 2)]
    image = Row(1, 3, [9, 9, 9], features=features[0], positions=own)
    rows = [Row(0, 5, [1, 1]), image, Row(2, 0, [9, 9], features=features[1])]
    layout = lay_out(rows, GRAPH)
    assert layout.positions.tolist() == [[[5, 6, *places, 0, 1]] for places in own.tolist()]
    assert layout.features is not None
    assert layout.features[:, 0].tolist() == [3, 3, 3, 2, 2]
    assert lay_out(rows[:1], GRAPH).features is None


def test_a_head_for_several_tokens_reads_the_states_of_its_rows() -> None:
    graph = replace(GRAPH, hidden_size=4, hidden_input="hidden")
    hidden = np.arange(8, dtype=np.float32).reshape(2, 4)
    layout = lay_out([Row(0, 5, [1]), Row(1, 0, [2, 3], hidden=hidden)], graph)
    assert layout.hidden is not None
    assert layout.hidden.tolist() == [[[0] * 4, *hidden.tolist()]]
    assert lay_out([Row(0, 5, [1])], GRAPH).hidden is None


def test_paged_attention_is_told_the_longest_rows() -> None:
    inputs = lay_out([Row(4, 10, [41, 42]), Row(0, 0, [1] * 9), Row(2, 17, [21])], PAGED).inputs
    assert inputs[paged_attention.STARTS].tolist() == [0, 2, 11, 12]
    assert inputs[paged_attention.PASTS].tolist() == [10, 0, 17]
    assert inputs[paged_attention.BOUNDS].tolist() == [9, 18, 18]
    assert SLOTS not in inputs


def arrays(layout: Layout) -> dict[str, NDArray[Any]]:
    return {"ids": layout.ids, "positions": layout.positions, **layout.inputs}


def test_a_layout_advances_in_place_with_rows_that_only_decode() -> None:
    layout = lay_out([Row(0, 5, [1]), Row(2, 9, [2])], GRAPH)
    before, rows = arrays(layout), [Row(0, 6, [3]), Row(2, 10, [4])]
    assert layout.advance(rows)
    after, anew = arrays(layout), lay_out(rows, GRAPH)
    assert all(after[name] is array for name, array in before.items())
    assert {name: array.tolist() for name, array in after.items()} == {
        name: array.tolist() for name, array in arrays(anew).items()
    }
    assert (layout.rows, layout.logits, layout.tokens) == (anew.rows, anew.logits, anew.tokens)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([Row(0, 6, [3])], id="fewer rows"),
        pytest.param([Row(0, 5, [1]), Row(2, 10, [4])], id="the same token again"),
        pytest.param([Row(0, 6, [3]), Row(1, 10, [4])], id="another slot"),
        pytest.param([Row(0, 6, [3]), Row(2, 10, [4, 5], num_drafted=1)], id="a draft"),
        pytest.param([Row(0, 6, [3]), Row(2, 10, [4], ranks=(0, 1))], id="an adapter"),
        pytest.param([Row(0, 6, [3]), Row(2, 10, [4], is_long=True)], id="long factors"),
        pytest.param([Row(0, 6, [3]), Row(2, 10, [4], positions=np.zeros((3, 1), np.int64))], id="own positions"),
    ],
)
def test_a_layout_does_not_advance_with_other_rows(rows: list[Row]) -> None:
    layout = lay_out([Row(0, 5, [1]), Row(2, 9, [2])], GRAPH)
    assert not layout.advance(rows)
    assert layout.ids.tolist() == [[1, 2]]
