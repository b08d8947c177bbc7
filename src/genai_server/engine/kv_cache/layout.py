"""The inputs of a forward pass that reads tokens of several sequences at once. A runner describes the tokens of each
sequence by a `Row`, and `lay_out` computes the arrays that the graph needs from these rows: token ids, positions, and
where the tokens and the KV cache slot of each sequence are.

The inputs are those of graphs that ragged.py, native_attention.py, lora.py and paged_attention.py in
engine/graph_rewriting have rewritten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting import lora, native_attention, paged_attention
from genai_server.engine.graph_rewriting.ragged import ROPE_POSITIONS, SCALES, WANTED

# The first rank of an adapter and the number of its ranks.
Ranks = tuple[int, int]


@dataclass(slots=True)  # not frozen: one is made for each row of each pass, and that takes a third of the time
class Row:
    """The tokens of one sequence that a forward pass reads, and how it reads them. The tokens come after the
    `num_cached` tokens whose keys and values are already in the KV cache slot number `slot`.
    """

    slot: int
    num_cached: int
    tokens: Sequence[int]
    # Of how many tokens, the last ones, the logits are needed.
    num_logits: int = 1
    # Whether the row has the long factors of the rope (`DecoderGraph.switches_at`).
    is_long: bool = False
    # The features of the image tokens among `tokens`, [features, hidden_size].
    features: NDArray[Any] | None = None
    # The positions of the tokens, int64 [axes, tokens]; None if they are counted from `num_cached`.
    positions: NDArray[np.int64] | None = None
    # The ranks of the sequence's adapter; None without an adapter.
    ranks: Ranks | None = None
    # Whether the row must have a pass of its own.
    is_alone: bool = False
    # The number of draft tokens, which are the last of the row's tokens; 0 without a draft.
    num_drafted: int = 0
    # The hidden states [tokens, hidden_size] that a head for multi-token prediction reads in addition to the tokens;
    # None for other models.
    hidden: NDArray[Any] | None = None
    # The factor by which a device multiplies logits before it computes a softmax.
    scale: float = 1.0


@dataclass
class Layout:
    """The inputs of a forward pass over several rows (one for each sequence), whose tokens are concatenated to one flat
    row. `lay_out` creates it.
    """

    # Flat tokens, int64 [1, T], and their positions in their sequences, int64 [1, T] or [axes, 1, T].
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    # The features of the image tokens among them, [features, hidden_size]; None if there are none.
    features: NDArray[Any] | None
    # The other inputs, by name.
    inputs: dict[str, NDArray[Any]]
    # The number of logits that the pass computes, and for each row the range of its own.
    num_logits: int
    logits: list[slice]
    rows: Sequence[Row]
    # The range of each row's tokens among the flat tokens.
    tokens: list[slice]
    # The hidden states [1, T, hidden_size] that a head for multi-token prediction reads in addition to the tokens; None
    # for other models.
    hidden: NDArray[Any] | None

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the pass reads, of all its sequences together."""
        return self.ids.size

    @property
    def has_drafts(self) -> bool:
        """Whether the pass reads draft tokens of speculative decoding for at least one sequence."""
        return any(row.num_drafted for row in self.rows)

    def advance(self, rows: Sequence[Row]) -> bool:
        """Change this layout in place to the layout of the next pass, if the next pass only decodes the same sequences.
        Returns whether it was changed.

        That is possible if each of `rows` has one token, which follows the only token of the row with the same index in
        this layout, and has no images or hidden states. Otherwise nothing is changed, and the caller must create a new
        layout. Most passes only decode, and a session need not bind its inputs again if the arrays are the same. Must
        not be called for a graph with paged attention.
        """
        if self.features is not None or self.hidden is not None or self.positions.ndim > 2:
            return False
        if len(rows) != len(self.rows) or not all(map(_follows, rows, self.rows)):
            return False
        self.ids[0] = [row.tokens[0] for row in rows]
        self.positions[0] = self.inputs[native_attention.PASTS][:] = [row.num_cached for row in rows]
        if ROPE_POSITIONS in self.inputs:
            self.inputs[ROPE_POSITIONS] += 1
        self.rows = rows
        return True


def _follows(row: Row, last: Row) -> bool:
    """Return whether `row` has one token, which follows the only token of the row `last` in the same sequence, and has
    the same slot, adapter, rope factors and scale as `last`.
    """
    is_next = len(row.tokens) == len(last.tokens) == 1 and row.num_cached == last.num_cached + 1
    is_same = row.slot == last.slot and row.ranks == last.ranks and row.is_long is last.is_long
    has_more = row.features is not None or row.positions is not None or row.hidden is not None
    return is_next and is_same and row.scale == last.scale and not has_more


def lay_out(rows: Sequence[Row], graph: DecoderGraph) -> Layout:
    """Return the inputs with which a graph reads the tokens of `rows`, one for each sequence, in one pass. `graph`
    describes the decoder, which decides what inputs there are. `rows` must not be empty.
    """
    behind_short = graph.switches_at or 0
    ids: list[int] = []
    positions: list[int] = []
    # The positions of rows with images, by the index of the row's first flat token.
    image_positions: dict[int, NDArray[np.int64]] = {}
    features: list[NDArray[Any]] = []
    rope_places: list[int] = []
    wanted: list[int] = []
    scales: list[float] = []
    logits: list[slice] = []
    tokens: list[slice] = []
    for row in rows:
        start = len(ids)
        ids += row.tokens
        positions += range(row.num_cached, row.num_cached + len(row.tokens))
        if row.positions is not None:
            image_positions[start] = row.positions
        if row.features is not None:
            features.append(row.features)
        rope = row.num_cached + (behind_short if row.is_long else 0)
        rope_places += range(rope, rope + len(row.tokens))
        logits.append(slice(len(wanted), len(wanted) + row.num_logits))
        wanted += range(len(ids) - row.num_logits, len(ids))
        scales += [row.scale] * row.num_logits
        tokens.append(slice(start, len(ids)))
    inputs = _paged_inputs(rows, tokens) if graph.block_tokens else _native_inputs(rows, tokens)
    inputs[WANTED] = np.array(wanted, np.int64)
    inputs[SCALES] = np.array(scales, np.float32)[:, np.newaxis]
    if graph.switches_at is not None:
        inputs[ROPE_POSITIONS] = np.array([rope_places], np.int64)
    return Layout(
        ids=np.array([ids], np.int64),
        positions=_with_axes(positions, image_positions),
        features=np.concatenate(features) if features else None,
        inputs=inputs,
        num_logits=len(wanted),
        logits=logits,
        rows=rows,
        tokens=tokens,
        hidden=_hidden(rows, tokens, len(ids), graph) if graph.hidden_input else None,
    )


def _native_inputs(rows: Sequence[Row], tokens: Sequence[slice]) -> dict[str, NDArray[Any]]:
    """Return additional inputs, by name, for the operators of the package genai-server-native: where the tokens of each
    row begin and end, how many tokens are cached, and the row's KV cache slot and LoRA adapter.

    `tokens` has the range of each row's tokens among the flat tokens of the pass.
    """
    ranks = [(0, 0) if row.ranks is None else row.ranks for row in rows]
    return {
        native_attention.STARTS: np.array([0, *(span.stop for span in tokens)], np.int32),
        native_attention.PASTS: np.array([row.num_cached for row in rows], np.int32),
        native_attention.SLOTS: np.array([row.slot for row in rows], np.int32),
        native_attention.COMMITTED: np.array([len(row.tokens) - row.num_drafted for row in rows], np.int32),
        lora.RANKS: np.array([first for first, _ in ranks], np.int32),
        lora.NUM_RANKS: np.array([number for _, number in ranks], np.int32),
    }


def _paged_inputs(rows: Sequence[Row], tokens: Sequence[slice]) -> dict[str, NDArray[Any]]:
    """Return additional inputs, by name, for paged attention on a device: where the tokens of each row begin and end,
    how many tokens are cached, and the lengths of the longest rows.

    `tokens` has the range of each row's tokens among the flat tokens of the pass.
    """
    longest = max(row.num_cached + len(row.tokens) for row in rows)
    return {
        paged_attention.STARTS: np.array([0, *(span.stop for span in tokens)], np.int32),
        paged_attention.PASTS: np.array([row.num_cached for row in rows], np.int32),
        paged_attention.BOUNDS: np.array([max(len(row.tokens) for row in rows), longest, longest], np.int32),
    }


def _hidden(rows: Sequence[Row], tokens: Sequence[slice], num_tokens: int, graph: DecoderGraph) -> NDArray[Any]:
    hidden = np.zeros((1, num_tokens, graph.hidden_size), graph.logits_type)
    for row, span in zip(rows, tokens, strict=True):
        if row.hidden is not None:
            hidden[0, span] = row.hidden
    return hidden


def _with_axes(positions: list[int], image_positions: Mapping[int, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the positions of the flat tokens of a pass: [1, tokens], or [axes, 1, tokens] if a row has images, whose
    tokens have positions on several axes.

    `positions` has a position for each flat token as if all were text. `image_positions` has, for each row that
    contains images, its positions [axes, tokens] by the index of the row's first flat token.
    """
    by_axis = np.array([positions], np.int64)
    for start, row_positions in image_positions.items():
        if by_axis.ndim == 2:
            by_axis = np.repeat(by_axis[np.newaxis], len(row_positions), axis=0)
        by_axis[:, 0, start : start + row_positions.shape[1]] = row_positions
    return by_axis
