"""Converts the KV cache between the layout of slots in memory and the layout of files on disk."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.disk_cache.segment_file import ArrayLayout
from genai_server.engine.kv_cache.row_states import RowStates

# Segments have about this many bytes, because a sequence that ends waits until the one being copied is complete.
_SEGMENT_BYTES = 4 * 1024 * 1024
_MIN_TOKENS, _MAX_TOKENS = 16, 256


class SlotMemory:
    """Copies the KV cache of tokens between slots and arrays of the files' data type, [kv_heads, tokens, head_size].

    `arrays` are the KV cache buffers of all slots, each [rows, kv_heads, length, head_size].
    """

    def __init__(
        self,
        arrays: Sequence[NDArray[Any]],
        states: RowStates | None,
        stored_type: Any,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        self._arrays = arrays
        self._type = np.dtype(stored_type)
        self.bytes_per_token: int = sum(array.shape[1] * array.shape[3] * self._type.itemsize for array in arrays)
        fitting = max(1, segment_bytes // self.bytes_per_token)
        # A power of two: whole groups of tokens, and whole blocks of KV events.
        self.segment_tokens = max(_MIN_TOKENS, min(_MAX_TOKENS, 1 << (fitting.bit_length() - 1)))
        self.has_states = states is not None
        self.state_layout = [
            ArrayLayout(array.shape[1:], array.dtype) for array in ([] if states is None else states.arrays)
        ]

    def layout(self, num_tokens: int) -> list[ArrayLayout]:
        """Shapes and types of the arrays that a file has for this number of tokens."""
        return [ArrayLayout((array.shape[1], num_tokens, array.shape[3]), self._type) for array in self._arrays]

    def read(self, slot: int, first: int, end: int) -> list[NDArray[Any]]:
        """Copy the KV cache of the tokens `first` to `end` of a slot, one array for each layer's keys and values."""
        return [array[slot, :, first:end].astype(self._type) for array in self._arrays]

    def write(self, slot: int, first: int, end: int, values: Sequence[NDArray[Any]], skipped: int) -> None:
        """Write KV cache arrays, without their first `skipped` tokens, to the tokens `first` to `end` of a slot."""
        for array, part in zip(self._arrays, values, strict=True):
            array[slot, :, first:end] = part[:, skipped : skipped + end - first]
