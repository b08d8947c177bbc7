"""The keys and values of KV cache slots, in the form in which files have them."""

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
    """Copies tokens between slots and arrays [kv_heads, tokens, head_size] of a type that files have.

    `arrays` are those of the slots, [rows, kv_heads, length, head_size] each.
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
        """The arrays of this number of tokens in a file."""
        return [ArrayLayout((array.shape[1], num_tokens, array.shape[3]), self._type) for array in self._arrays]

    def read(self, slot: int, first: int, end: int) -> list[NDArray[Any]]:
        """Copies of the keys and values of some of a slot's tokens."""
        return [array[slot, :, first:end].astype(self._type) for array in self._arrays]

    def write(self, slot: int, first: int, end: int, values: Sequence[NDArray[Any]], skipped: int) -> None:
        """Write keys and values to a slot's tokens from `first` to `end`, without the first ones of the arrays."""
        for array, part in zip(self._arrays, values, strict=True):
            array[slot, :, first:end] = part[:, skipped : skipped + end - first]
