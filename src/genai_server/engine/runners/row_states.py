"""Memory for the states of fixed size that some layers keep of each sequence, in place of keys and values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.disk_cache.segment_file import ArrayLayout
from genai_server.engine.model.graph import DecoderGraph, LayerState
from genai_server.engine.model.ragged import NARROW, WIDE
from genai_server.engine.model.ragged_states import STATES
from genai_server.engine.runners.layout import Span

# A copy of one row's states.
Saved = list[NDArray[Any]]


class RowStates:
    """The states of all layers in CPU memory: one array [rows, …] each."""

    def __init__(self, graph: DecoderGraph, num_rows: int) -> None:
        self._convolutions = _arrays(graph.conv_states, num_rows)
        self._recurrences = _arrays(graph.recurrent_states, num_rows)
        self._sounds = _arrays(graph.cross_states, num_rows)
        # What a group without tokens reads.
        silence = [replace(state, shape=(state.shape[0], 1, state.shape[2])) for state in graph.cross_states]
        self._silence = _arrays(silence, 1)
        # Tokens whose keys and values take as much memory as a row's states.
        self.tokens_worth = graph.bytes_per_row // graph.bytes_per_token
        self._arrays = [array for _, array in (*self._convolutions, *self._recurrences)]

    @property
    def layout(self) -> list[ArrayLayout]:
        """What `save` returns."""
        return [ArrayLayout(array.shape[1:], array.dtype) for array in self._arrays]

    def clear(self, row: int) -> None:
        """Set a row's states to those before the first token."""
        for array in self._arrays:
            array[row] = 0

    def save(self, row: int) -> Saved:
        """Copies of a row's states."""
        return [array[row].copy() for array in self._arrays]

    def load(self, row: int, saved: Saved) -> None:
        """Set a row's states to saved ones."""
        for array, values in zip(self._arrays, saved, strict=True):
            array[row] = values

    def copy(self, source: int, target: int) -> None:
        """Copy the states of one row to another."""
        for array in self._arrays:
            array[target] = array[source]

    def set_sound(self, row: int, sound: Sequence[NDArray[Any]]) -> None:
        """Set the sound of a row: keys and values [1, heads, frames, head_size] of all layers."""
        for (_, array), values in zip(self._sounds, sound, strict=True):
            array[row] = values[0]

    def bind(self, binding: Any, spans: tuple[Span, Span, Span]) -> None:
        """Bind the rows of both groups and of all rows, as past and, if the graph changes them, as present."""
        narrow, wide, everything = spans
        for group, (first, num_rows) in ((NARROW, narrow), (WIDE, wide)):
            sounds = self._sounds if num_rows else self._silence
            for state, array in sounds:
                view = array[first : first + num_rows] if num_rows else array
                binding.bind_input(group + state.past, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
        _bind(binding, self._recurrences, narrow, NARROW)
        _bind(binding, self._recurrences, wide, WIDE)
        _bind(binding, self._convolutions, everything, STATES)


def _arrays(states: Sequence[LayerState], num_rows: int) -> list[tuple[LayerState, NDArray[Any]]]:
    return [(state, np.zeros((num_rows, *state.shape), state.type)) for state in states]


def _bind(binding: Any, arrays: Sequence[tuple[LayerState, NDArray[Any]]], span: Span, prefix: str) -> None:
    first, num_rows = span
    for state, array in arrays:
        view = array[first : first + num_rows]
        binding.bind_input(prefix + state.past, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
        binding.bind_output(prefix + state.present, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
