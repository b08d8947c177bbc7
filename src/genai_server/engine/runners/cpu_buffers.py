"""CPU memory for the keys and values of a batch."""

import contextlib
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.model.graph import DecoderGraph


def lazy_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array whose memory is allocated page by page as it is written.

    numpy would ask Linux for huge pages. Clearing one or two for each layer made the first use of a slot take 0.2 s.
    """
    array = np.zeros(shape, dtype)
    if sys.platform == "linux":
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        array = np.frombuffer(memory, dtype).reshape(shape)
    return array


class CpuBuffers:
    """Keys and values of all layers in CPU memory: one array [rows, kv_heads, length, head_size] each.

    Each row has room for one token more than a sequence may have, because padding rows write one past their end. The
    memory is reserved, and allocated only when written.
    """

    def __init__(self, graph: DecoderGraph, num_rows: int, max_length: int) -> None:
        shape = (num_rows, graph.num_kv_heads, graph.slot_length(max_length), graph.head_size)
        self._names = list(zip(graph.past_names, graph.present_names, strict=True))
        self._arrays = [lazy_zeros(shape, graph.cache_type) for _ in self._names]

    def copy(self, source: int, target: int, length: int) -> None:
        for array in self._arrays:
            array[target, :, :length] = array[source, :, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        for array in self._arrays:
            kept = array[one, :, :length].copy()
            array[one, :, :length] = array[other, :, :length]
            array[other, :, :length] = kept

    def bind(self, binding: Any, first: int, rows: int, part: str = "") -> None:
        """Bind the slots `first` to `first + rows` as past and as present, whose names begin with `part`."""
        for (past, present), array in zip(self._names, self._arrays, strict=True):
            view = array[first : first + rows]
            binding.bind_input(part + past, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
            binding.bind_output(part + present, "cpu", 0, array.dtype, view.shape, view.ctypes.data)

    def keep(self, binding: Any, output: str) -> None:
        """Leave an output of a pass in CPU memory."""
        binding.bind_output(output, "cpu")

    def write(self, slot: int, present: str, values: np.ndarray[Any, Any]) -> None:
        """Write keys or values [1, kv_heads, tokens, head_size] of the first tokens to a slot."""
        index = next(i for i, (_, name) in enumerate(self._names) if name == present)
        self._arrays[index][slot, :, : values.shape[2]] = values[0]
