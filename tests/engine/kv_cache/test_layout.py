"""Where the tokens of a pass lie."""

from dataclasses import replace

import numpy as np
import pytest

from genai_server.engine.decoder_graph import LayerState
from genai_server.engine.graph_rewriting.groups import BOUND, LAST, NARROW, NEW, PADDED, PLACES, WIDE
from genai_server.engine.graph_rewriting.low_rank import RANKS
from genai_server.engine.graph_rewriting.ragged import NARROW_WIDTH, ROPE_PLACES, WANTED, WINDOW_BOUND, WINDOW_LAST
from genai_server.engine.kv_cache.layout import MAX_FOREIGN_RANKS, Layout, lay_out, split_passes
from genai_server.engine.kv_cache.row import Row, SlotSpan
from genai_server.engine.model.graph import read_decoder_graph
from tests.running_server import DEMO

GRAPH = read_decoder_graph(DEMO)


def padded_ids(layout: Layout, group: str) -> list[list[int]]:
    """The tokens [rows, width] that attention sees, with the first flat token at padded places."""
    return [[int(layout.ids[tuple(place)]) for place in row] for row in layout.inputs[group + PADDED]]


def test_rows_are_padded_and_flattened_in_their_group() -> None:
    rows = [Row(4, 10, [41, 42]), Row(0, 0, list(range(100, 120)), 20), Row(2, 7, [21])]
    layout = lay_out(rows, GRAPH)
    assert layout.spans == (SlotSpan(2, 3), SlotSpan(0, 1))
    assert layout.ids.tolist() == [[41, 42, 21, *range(100, 120)]]
    assert layout.positions.tolist() == [[10, 11, 7, *range(20)]]
    assert padded_ids(layout, NARROW) == [[21, 41], [41, 41], [41, 42]]
    assert layout.inputs[NARROW + PLACES].tolist() == [[[2, 0], [2, 1], [0, 0]]]
    assert layout.inputs[NARROW + LAST].tolist() == [7, 0, 11]
    assert layout.inputs[NARROW + NEW].tolist() == [1, 0, 2]
    assert layout.inputs[NARROW + BOUND] == 12
    assert padded_ids(layout, WIDE) == [list(range(100, 120))]
    assert layout.inputs[WANTED].tolist() == [1, 2, *range(3, 23)]
    assert layout.logits == [slice(0, 1), slice(2, 22), slice(1, 2)]


@pytest.mark.parametrize(
    ("lengths", "exact_group", "start"), [((300, 210), None, 128), ((300, 9), None, 0), ((300, 210), 2, 0)]
)
def test_windows_begin_where_the_shortest_row_needs_them(
    lengths: tuple[int, int], exact_group: int | None, start: int
) -> None:
    graph = replace(GRAPH, windows=dict.fromkeys(GRAPH.past_names[:2], 60))
    layout = lay_out([Row(n, length, [1]) for n, length in enumerate(lengths)], graph, exact_group=exact_group)
    assert layout.spans == (SlotSpan(0, 2, start), SlotSpan(0, 1))
    assert layout.inputs[NARROW + LAST].tolist() == list(lengths)
    assert layout.inputs[NARROW + WINDOW_LAST].tolist() == [length - start for length in lengths]
    assert layout.inputs[NARROW + WINDOW_BOUND] == 301 - start
    assert layout.inputs[ROPE_PLACES][0, :2].tolist() == list(lengths)


@pytest.mark.parametrize("rows", [[Row(0, 5, [1])], [Row(3, 0, [1] * 40)]])
def test_unused_group_has_one_idle_row(rows: list[Row]) -> None:
    layout = lay_out(rows, GRAPH)
    unused = WIDE if len(rows[0].tokens) == 1 else NARROW
    assert layout.inputs[unused + NEW].tolist() == layout.inputs[unused + LAST].tolist() == [0]
    assert layout.inputs[unused + PADDED].shape == (1, 1, 2)
    assert layout.inputs[unused + PLACES].shape == (1, 0, 2)


@pytest.mark.parametrize(("exact_group", "width"), [(None, 1), (1, 2), (4, 2)])
def test_only_exact_rows_of_one_token_are_padded(exact_group: int | None, width: int) -> None:
    assert lay_out([Row(0, 5, [1])], GRAPH, exact_group=exact_group).inputs[NARROW + PADDED].shape == (1, width, 2)


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_tokens_and_logits_are_filled_up_to_complete_groups(group: int) -> None:
    layout = lay_out([Row(0, 5, [1]), Row(1, 0, [2] * 18)], GRAPH, exact_group=group)
    assert layout.num_tokens % group == layout.num_logits % group == 0
    assert layout.num_tokens - 19 < group
    assert layout.logits == [slice(0, 1), slice(1, 2)]
    # The added tokens are read by no row.
    read = np.concatenate([layout.inputs[part + PADDED][:, :, 1].ravel() for part in (NARROW, WIDE)])
    assert read.max() == 18


def test_long_rows_have_other_places_in_the_rope() -> None:
    graph = replace(GRAPH, switches_at=128)
    layout = lay_out([Row(0, 5, [1]), Row(1, 130, [2], is_long=True), Row(2, 126, [3] * 20, is_long=True)], graph)
    assert layout.positions.tolist() == [[5, 130, *range(126, 146)]]
    assert layout.inputs[ROPE_PLACES].tolist() == [[5, 258, *range(254, 274)]]


def test_linear_attention_pads_no_row_of_one_token() -> None:
    rows = [Row(0, 5, [1]), Row(1, 0, [2] * 3)]
    graph = replace(GRAPH, recurrent_states=(LayerState("past", "present", (1, 1, 1), np.float32),))
    assert lay_out(rows, graph).inputs[NARROW + PADDED].shape == (1, 1, 2)
    assert lay_out(rows, GRAPH).inputs[NARROW + PADDED].shape == (2, 3, 2)


def wide(slot: int, num_tokens: int, num_cached: int = 0) -> Row:
    return Row(slot, num_cached, [1] * num_tokens)


@pytest.mark.parametrize(
    ("rows", "num_passes"),
    [
        ([wide(0, 20), wide(1, 30), Row(5, 9, [1])], 1),
        ([wide(0, 20), wide(2, 20)], 1),
        ([wide(0, 20), wide(9, 20)], 2),
        ([wide(0, 200), wide(1, 17), wide(2, 17), wide(3, 17)], 2),
        ([wide(0, 20, num_cached=80), wide(1, 40)], 2),
        ([Row(0, 0, [1] * NARROW_WIDTH), Row(9, 0, [1] * NARROW_WIDTH)], 1),
    ],
)
def test_only_rows_with_little_padding_share_a_pass(rows: list[Row], num_passes: int) -> None:
    passes = split_passes(rows, GRAPH, slot_length=110)
    assert len(passes) == num_passes
    assert sorted(row.slot for members in passes for row in members) == sorted(row.slot for row in rows)


def adapted(slot: int, ranks: tuple[int, int] | None, num_tokens: int = 1, *, is_alone: bool = False) -> Row:
    return Row(slot, 5, [1] * num_tokens, ranks=ranks, is_alone=is_alone)


def slots(passes: list[list[Row]]) -> list[list[int]]:
    return [sorted(row.slot for row in rows) for rows in passes]


def test_tokens_keep_the_ranks_of_their_adapter() -> None:
    layout = lay_out([adapted(0, (4, 2)), adapted(1, None), adapted(2, (7, 1), 20), adapted(3, (4, 2), 2)], GRAPH)
    assert layout.ranks == (4, 4)
    kept = layout.inputs[RANKS][0].astype(int).tolist()
    assert kept == [[1, 1, 0, 0], [0] * 4, [1, 1, 0, 0], [1, 1, 0, 0], *[[0, 0, 0, 1]] * 20]


def test_pass_without_adapters_has_no_ranks() -> None:
    layout = lay_out([adapted(0, None, 3)], GRAPH)
    assert layout.ranks is None
    assert layout.inputs[RANKS].shape == (1, 3, 0)


def test_rows_of_several_adapters_share_a_pass() -> None:
    rows = [adapted(number, (16 * (number % 4), 16)) for number in range(8)] + [adapted(8, None, 20)]
    assert slots(split_passes(rows, GRAPH, 110)) == [list(range(9))]


def test_long_prompt_has_a_pass_without_other_adapters() -> None:
    prompt = adapted(0, (0, 16), MAX_FOREIGN_RANKS // 16)
    assert slots(split_passes([prompt, adapted(1, (16, 15))], GRAPH, 1000)) == [[0, 1]]
    others = [adapted(1, (16, 16)), adapted(2, (32, 16)), adapted(3, None)]
    assert slots(split_passes([prompt, *others], GRAPH, 1000)) == [[0, 3], [1, 2]]
    assert slots(split_passes([replace(prompt, ranks=None), *others], GRAPH, 1000)) == [[0, 3], [1, 2]]


def test_rows_of_one_adapter_never_need_a_second_pass() -> None:
    rows = [adapted(number, (0, 10**6), 4) for number in range(8)]
    assert slots(split_passes(rows, GRAPH, 110)) == [list(range(8))]


def test_row_that_is_alone_shares_no_pass() -> None:
    rows = [adapted(0, (0, 2), is_alone=True), adapted(1, (0, 2)), adapted(2, None), adapted(3, (0, 2), is_alone=True)]
    assert slots(split_passes(rows, GRAPH, 110)) == [[1, 2], [0], [3]]
