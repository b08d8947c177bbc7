"""Where the tokens of a pass lie: in the flat row, in the two groups of attention, and in the KV cache slots.

The inputs are those of groups.py, ragged.py, ragged_states.py, native_attention.py and paged_attention.py in
engine/graph_rewriting.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.decoder_graph import DecoderGraph
from genai_server.engine.graph_rewriting import native_attention, ragged_states
from genai_server.engine.graph_rewriting.groups import BOUND, GROUPS, LAST, NEW, PADDED, PLACES, WIDE
from genai_server.engine.graph_rewriting.low_rank import RANKS
from genai_server.engine.graph_rewriting.output_head import SCALES
from genai_server.engine.graph_rewriting.paged_attention import BOUNDS, PASTS, STARTS
from genai_server.engine.graph_rewriting.ragged import NARROW_WIDTH, ROPE_PLACES, WANTED, WINDOW_BOUND, WINDOW_LAST
from genai_server.engine.kv_cache.row import Ranks, Row, SlotSpan, Span

# With a single place for each row, attention on CPUs takes another kernel. Its results may depend on the other rows.
_EXACT_WIDTH = 2
# Wide rows share a pass if padding makes their places at most this many times their tokens. Padding costs copies only.
_MAX_PADDING = 3
# Rows of several adapters share a pass if it multiplies at most this many ranks with tokens that do not keep them.
# Measured: a further pass takes as long as about 1,400 of these on a model of 0.5 billion weights.
MAX_FOREIGN_RANKS = 1024
# The buffers of layers with a window begin at a multiple of this number of tokens: each such place has a binding.
WINDOW_STEP = 64


@dataclass(frozen=True)
class Layout:
    """A pass over some rows."""

    # Flat tokens, int64 [1, T], and their positions in their sequences, int64 [1, T] or [axes, 1, T].
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    # Of the image tokens among them, [features, hidden_size]; None without any.
    features: NDArray[Any] | None
    # The other inputs, by name.
    inputs: dict[str, NDArray[Any]]
    # Of the narrow and the wide group; none for paged attention.
    spans: tuple[SlotSpan, ...]
    # The first slot and the number of slots for the states of both groups, which may have no slot, and for those of all
    # rows.
    state_spans: tuple[Span, Span, Span] | None
    # The number of logits that the pass computes, and for each row the range of its own.
    num_logits: int
    logits: list[slice]
    # From those of its first adapter to those of its last; None if no row has one.
    ranks: Ranks | None
    rows: Sequence[Row]
    # The slots of the rows in the narrow group.
    narrow_slots: frozenset[int]
    # The longest draft, of a graph with states.
    num_drafted: int
    # Where each row's flat tokens are.
    tokens: list[slice]
    # What a head for multi-token prediction reads besides the tokens, [1, T, hidden_size]; None for other graphs.
    hidden: NDArray[Any] | None

    @property
    def num_tokens(self) -> int:
        """Flat tokens, with those that fill groups up."""
        return self.ids.size


def _is_chunk(row: Row, graph: DecoderGraph) -> bool:
    """Whether a row is in the wide group because of its number of tokens.

    Padding costs a linear attention as much as tokens do, because it takes no lengths. So only rows of one token and
    drafts are narrow there.
    """
    if graph.recurrent_states:
        return len(row.tokens) - row.num_drafted > 1
    return len(row.tokens) > NARROW_WIDTH


def _wide_rows(rows: Sequence[Row], graph: DecoderGraph) -> list[bool]:
    """Whether each row of a pass is in the wide group.

    Without chunks, linear attention has the rows without a draft there, so that they are not padded to the drafts.
    """
    wide = [_is_chunk(row, graph) for row in rows]
    if graph.recurrent_states and not any(wide) and any(row.num_drafted for row in rows):
        return [not row.num_drafted for row in rows]
    return wide


def split_passes(rows: Iterable[Row], graph: DecoderGraph, slot_length: int) -> list[list[Row]]:
    """The rows of each pass.

    Further ones are needed only for wide rows that are far apart or differ much in length, for adapters that would make
    many tokens of others slower, and for rows that share no pass.
    """
    return [part for joined in _join_adapters(rows) for part in _split_spans(joined, graph, slot_length)]


def _join_adapters(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows whose adapters are in one pass."""
    alone: list[list[Row]] = []
    by_adapter: dict[Ranks | None, list[Row]] = {}
    for row in rows:
        if row.is_alone:
            alone.append([row])
        else:
            by_adapter.setdefault(row.ranks, []).append(row)
    joined: list[list[Row]] = []
    # Tokens and ranks of each of these.
    sizes: list[tuple[int, int]] = []
    for ranks, members in sorted(by_adapter.items(), key=lambda item: -_num_tokens(item[1])):
        tokens, number = _num_tokens(members), 0 if ranks is None else ranks[1]
        for index, (others, other_ranks) in enumerate(sizes):
            if tokens * other_ranks + others * number <= MAX_FOREIGN_RANKS:
                joined[index] += members
                sizes[index] = tokens + others, number + other_ranks
                break
        else:
            joined.append(members)
            sizes.append((tokens, number))
    return [*joined, *alone]


def _num_tokens(rows: Iterable[Row]) -> int:
    return sum(len(row.tokens) for row in rows)


def _split_spans(rows: list[Row], graph: DecoderGraph, slot_length: int) -> list[list[Row]]:
    if graph.block_tokens or graph.is_native:
        return [rows]
    spans: list[list[Row]] = []
    for row in sorted((row for row in rows if _is_chunk(row, graph)), key=lambda row: row.slot):
        if spans and _may_join([*spans[-1], row], slot_length):
            spans[-1].append(row)
        else:
            spans.append([row])
    narrow = [row for row in rows if not _is_chunk(row, graph)]
    first, *others = spans or [[]]
    return [[*narrow, *first], *others]


def _may_join(rows: list[Row], slot_length: int) -> bool:
    width = max(len(row.tokens) for row in rows)
    if max(row.num_cached for row in rows) + width > slot_length:
        return False
    num_places = (rows[-1].slot + 1 - rows[0].slot) * width
    return num_places <= _MAX_PADDING * sum(len(row.tokens) for row in rows)


def lay_out(rows: Sequence[Row], graph: DecoderGraph, *, exact_group: int | None = None) -> Layout:
    """Lay out a pass.

    With an `exact_group`, each row is bitwise the same next to any others: the flat tokens and the logits are filled up
    to complete groups of this size with some that nothing reads.
    """
    behind_short = graph.switches_at or 0
    is_wide = [False] * len(rows) if graph.block_tokens or graph.is_native else _wide_rows(rows, graph)
    num_drafted = max(row.num_drafted for row in rows) if graph.has_states else 0
    row_group, min_width = (1, 1) if exact_group is None else (exact_group, _EXACT_WIDTH)
    ids: list[int] = []
    positions: list[int] = []
    # By the first of their flat tokens.
    image_positions: dict[int, NDArray[np.int64]] = {}
    features: list[NDArray[Any]] = []
    rope_places: list[int] = []
    wanted: list[int] = []
    scales: list[float] = []
    # Of all rows, in the order of their flat tokens.
    slots: list[int] = []
    adapted: list[tuple[slice, Ranks | None]] = []
    ends = [0]
    logits: dict[int, slice] = {}
    tokens: dict[int, slice] = {}
    for number in sorted(range(len(rows)), key=is_wide.__getitem__):
        row, start = rows[number], len(ids)
        ids += row.tokens
        positions += range(row.num_cached, row.num_cached + len(row.tokens))
        if row.positions is not None:
            image_positions[start] = row.positions
        if row.features is not None:
            features.append(row.features)
        rope = row.num_cached + (behind_short if row.is_long else 0)
        rope_places += range(rope, rope + len(row.tokens))
        logits[number] = slice(len(wanted), len(wanted) + row.num_logits)
        wanted += range(len(ids) - row.num_logits, len(ids))
        scales += [row.scale] * row.num_logits
        tokens[number] = slice(start, len(ids))
        adapted.append((tokens[number], row.ranks))
        slots.append(row.slot)
        ends.append(len(ids))
    missing = [0] * (-len(ids) % row_group)
    ids, positions, rope_places = ids + missing, positions + missing, rope_places + missing
    spans: list[SlotSpan] = []
    state_spans: list[Span] = []
    if graph.is_native:
        inputs = _native_inputs(rows, ends)
    elif graph.block_tokens:
        inputs = _paged_inputs(rows, ends)
    else:
        inputs = {}
        for group in GROUPS:
            members = {n: row for n, row in enumerate(rows) if is_wide[n] == (group is WIDE)}
            found, (first, number), used = _group_inputs(group, members, tokens, graph, min_width, missing)
            # Sums over other ranges of tokens may be rounded differently.
            start = _window_start(members.values(), graph) if graph.windows and exact_group is None else 0
            inputs |= found
            if graph.windows:
                inputs |= _window_inputs(group, found, start)
            spans.append(SlotSpan(first, number, start))
            state_spans.append(used)
    wanted += [0] * (-len(wanted) % row_group)
    inputs[WANTED] = np.array(wanted, np.int64)
    scales += [1.0] * (len(wanted) - len(scales))
    inputs[SCALES] = np.array(scales, np.float32)[:, np.newaxis]
    if graph.switches_at is not None or (graph.windows and not graph.is_native):
        inputs[ROPE_PLACES] = np.array([rope_places], np.int64)
    ranks, inputs[RANKS] = _kept_ranks(adapted, len(ids))
    first = min(slots)
    num_rows = max(slots) + 1 - first
    state_spans.append((first, num_rows))
    if graph.conv_width:
        places = np.array(slots) - first
        inputs |= ragged_states.conv_inputs(places, num_rows, ends, len(ids), graph.conv_width, num_drafted)
    return Layout(
        ids=np.array([ids], np.int64),
        positions=_with_axes(positions, image_positions),
        features=np.concatenate(features) if features else None,
        inputs=inputs,
        spans=tuple(spans),
        state_spans=(state_spans[0], state_spans[1], state_spans[2]) if graph.bytes_per_row else None,
        num_logits=len(wanted),
        logits=[logits[number] for number in range(len(rows))],
        ranks=ranks,
        rows=rows,
        narrow_slots=frozenset(row.slot for row, wide in zip(rows, is_wide, strict=True) if not wide),
        num_drafted=num_drafted,
        tokens=[tokens[number] for number in range(len(rows))],
        hidden=_hidden(rows, tokens, len(ids), graph) if graph.hidden_input else None,
    )


def _group_inputs(
    group: str,
    members: Mapping[int, Row],
    tokens: Mapping[int, slice],
    graph: DecoderGraph,
    min_width: int,
    missing: Sequence[int],
) -> tuple[dict[str, NDArray[Any]], Span, Span]:
    """The inputs for a group of attention, and the slots that attention and the states of its rows have.

    Its `members` and the flat `tokens` of all rows are by the rows' numbers. The wide group also has the `missing`
    tokens at the end of the flat row.
    """
    first = min((row.slot for row in members.values()), default=0)
    num_rows = max((row.slot + 1 - first for row in members.values()), default=1)  # at least one, idle or not
    width = max([min_width, *(len(row.tokens) for row in members.values())])
    padded = np.zeros((num_rows, width, 2), np.int64)
    last, new = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
    places: list[tuple[int, int]] = []
    for number, row in members.items():
        index, num_tokens = row.slot - first, len(row.tokens)
        padded[index, :num_tokens, 1] = np.arange(tokens[number].start, tokens[number].stop)
        last[index], new[index] = row.num_cached + num_tokens - 1, num_tokens
        places += [(index, place) for place in range(num_tokens)]
    if group is WIDE:
        places += [(0, 0)] * len(missing)
    inputs: dict[str, NDArray[Any]] = {
        group + PADDED: padded,
        group + PLACES: np.array(places, np.int64).reshape(1, -1, 2),
        group + LAST: last,
        group + NEW: new,
        group + BOUND: np.array(max(int(last.max()) + 1, width), np.int32),
    }
    num_used = num_rows if places else 0
    if graph.has_states:
        has_token = np.arange(width) < new[:num_used, np.newaxis]
        inputs[group + ragged_states.PADDED_STATES] = padded[:num_used]
        inputs[group + ragged_states.HAS_TOKEN] = has_token[:, :, np.newaxis]
    return inputs, (first, num_rows), (first, num_used)


def _window_start(rows: Iterable[Row], graph: DecoderGraph) -> int:
    """The first token of a group's rows that layers with a window have in their buffers.

    All rows have the same, so it is early enough for the shortest one.
    """
    shortest = min((row.num_cached for row in rows), default=0)
    return max(0, shortest - graph.widest_window) // WINDOW_STEP * WINDOW_STEP


def _window_inputs(group: str, inputs: Mapping[str, NDArray[Any]], start: int) -> dict[str, NDArray[Any]]:
    """The lengths of a group's rows, counted from this token on."""
    last, width = np.maximum(0, inputs[group + LAST] - start), inputs[group + PADDED].shape[1]
    return {group + WINDOW_LAST: last, group + WINDOW_BOUND: np.array(max(int(last.max()) + 1, width), np.int32)}


def _native_inputs(rows: Sequence[Row], ends: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The inputs of genai-server-native's attention."""
    return {
        native_attention.STARTS: np.array(ends, np.int32),
        native_attention.PASTS: np.array([row.num_cached for row in rows], np.int32),
        native_attention.SLOTS: np.array([row.slot for row in rows], np.int32),
    }


def _paged_inputs(rows: Sequence[Row], ends: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The inputs of paged attention that say how long the rows are."""
    longest = max(row.num_cached + len(row.tokens) for row in rows)
    return {
        STARTS: np.array(ends, np.int32),
        PASTS: np.array([row.num_cached for row in rows], np.int32),
        BOUNDS: np.array([max(len(row.tokens) for row in rows), longest, longest], np.int32),
    }


def _hidden(rows: Sequence[Row], tokens: Mapping[int, slice], num_tokens: int, graph: DecoderGraph) -> NDArray[Any]:
    found = np.zeros((1, num_tokens, graph.hidden_size), graph.logits_type)
    for number, row in enumerate(rows):
        if row.hidden is not None:
            found[0, tokens[number]] = row.hidden
    return found


def _kept_ranks(adapted: list[tuple[slice, Ranks | None]], num_tokens: int) -> tuple[Ranks | None, NDArray[np.bool_]]:
    """The ranks of a pass over some rows' tokens, and which of these each token keeps, [1, tokens, ranks]."""
    found = [(tokens, ranks[0], sum(ranks)) for tokens, ranks in adapted if ranks is not None]
    first = min((start for _, start, _ in found), default=0)
    last = max((end for *_, end in found), default=0)
    kept = np.zeros((1, num_tokens, last - first), np.bool_)
    for tokens, start, end in found:
        kept[0, tokens, start - first : end - first] = True
    return (first, last - first) if found else None, kept


def _with_axes(positions: list[int], image_positions: dict[int, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Flat positions [1, T], or [axes, 1, T] if some tokens have positions of their own on several axes."""
    found = np.array([positions], np.int64)
    for start, own in image_positions.items():
        if found.ndim == 2:
            found = np.repeat(found[np.newaxis], len(own), axis=0)
        found[:, 0, start : start + own.shape[1]] = own
    return found
