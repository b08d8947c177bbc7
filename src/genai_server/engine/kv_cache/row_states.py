"""Memory for the states of fixed size that some layers keep of each sequence, in place of keys and values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.decoder_graph import DecoderGraph, LayerState
from genai_server.engine.graph_rewriting.groups import NARROW, WIDE
from genai_server.engine.graph_rewriting.ragged_states import STATES
from genai_server.engine.kv_cache.layout import Layout
from genai_server.engine.kv_cache.row import Row, Span
from genai_server.engine.kv_cache.unverified_states import UnverifiedStates, unverified_outputs

# A copy of one row's states.
Saved = list[NDArray[Any]]


class RowStates:
    """The states of all layers in CPU memory: one array [rows, …] each.

    `recurrences` is a session of the graph's linear attentions alone (engine/model/session.py), for drafts.
    """

    def __init__(self, graph: DecoderGraph, num_rows: int, recurrences: Any = None) -> None:
        self._convolutions = _arrays(graph.conv_states, num_rows)
        self._recurrences = _arrays(graph.recurrent_states, num_rows)
        self._sounds = _arrays(graph.cross_states, num_rows)
        # What a group without tokens reads.
        silence = [replace(state, shape=(state.shape[0], 1, state.shape[2])) for state in graph.cross_states]
        self._silence = _arrays(silence, 1)
        # Tokens whose keys and values take as much memory as a row's states.
        self.tokens_worth = graph.bytes_per_row // graph.bytes_per_token
        # What is saved of each row.
        self.arrays = [array for _, array in (*self._convolutions, *self._recurrences)]
        self._session = recurrences
        # Outputs of a pass with drafts, and where its linear attentions write states that nothing reads.
        self.unverified = unverified_outputs(self._convolutions, self._recurrences)
        most = max((state.num_bytes for state in graph.recurrent_states), default=0)
        self._unread = np.empty((num_rows, 0 if recurrences is None else most), np.uint8)
        # By their slots, the rows of the last pass with drafts whose states are those before it.
        self._waiting: dict[int, tuple[Row, UnverifiedStates]] = {}

    def clear(self, row: int) -> None:
        """Set a row's states to those before the first token."""
        self._waiting.pop(row, None)
        for array in self.arrays:
            array[row] = 0

    def save(self, row: int) -> Saved:
        """Copies of a row's states."""
        self.accept(row, 0)
        return [array[row].copy() for array in self.arrays]

    def load(self, row: int, saved: Saved) -> None:
        """Set a row's states to saved ones."""
        self._waiting.pop(row, None)
        for array, values in zip(self.arrays, saved, strict=True):
            array[row] = values

    def copy(self, source: int, target: int) -> None:
        """Copy the states of one row to another."""
        self.accept(source, 0)
        self._waiting.pop(target, None)
        for array in self.arrays:
            array[target] = array[source]

    def set_sound(self, row: int, sound: Sequence[NDArray[Any]]) -> None:
        """Set the sound of a row: keys and values [1, heads, frames, head_size] of all layers."""
        for (_, array), values in zip(self._sounds, sound, strict=True):
            array[row] = values[0]

    def passed(self, layout: Layout, values: Mapping[str, Any]) -> None:
        """Take what a pass with drafts gave, by the names in `unverified`. Rows with a draft wait for `accept`."""
        found = UnverifiedStates(values, layout)
        for row in layout.rows:
            self._waiting[row.slot] = row, found
            if not row.num_drafted:
                self.accept(row.slot, 0)

    def accept(self, row: int, num_tokens: int) -> None:
        """Set a row's states to those behind the first tokens of its draft, if it waits for that."""
        if (waiting := self._waiting.pop(row, None)) is not None:
            read, found = waiting
            num_rejected = read.num_drafted - num_tokens
            found.write_convolutions(read, num_rejected, self._convolutions)
            found.write_recurrences(read, num_rejected, self._recurrences, self._session)

    def accept_nothing(self) -> None:
        """Set the states of all waiting rows to those before their drafts."""
        for row in list(self._waiting):
            self.accept(row, 0)

    def bind(self, binding: Any, spans: tuple[Span, Span, Span], *, drafted: bool) -> None:
        """Bind the rows of both groups and of all rows, as past and, if the graph changes them, as present.

        A pass that has `drafted` tokens changes only recurrent states of the wide group. Its outputs `unverified` are
        bound before each such pass.
        """
        narrow, wide, everything = spans
        for group, (first, num_rows) in ((NARROW, narrow), (WIDE, wide)):
            sounds = self._sounds if num_rows else self._silence
            for state, array in sounds:
                view = array[first : first + num_rows] if num_rows else array
                binding.bind_input(group + state.past, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
        for prefix, arrays, (first, num_rows), changes in (
            (NARROW, self._recurrences, narrow, not drafted),
            (WIDE, self._recurrences, wide, True),
            (STATES, self._convolutions, everything, not drafted),
        ):
            for state, array in arrays:
                view = array[first : first + num_rows]
                binding.bind_input(prefix + state.past, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
                if changes or prefix is NARROW:
                    written = view if changes else self._unread
                    binding.bind_output(prefix + state.present, "cpu", 0, array.dtype, view.shape, written.ctypes.data)


def _arrays(states: Sequence[LayerState], num_rows: int) -> list[tuple[LayerState, NDArray[Any]]]:
    return [(state, np.zeros((num_rows, *state.shape), state.type)) for state in states]
