"""CPU memory for the keys and values of a batch."""

import contextlib
import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.decoder_graph import DecoderGraph
from genai_server.engine.graph_rewriting.groups import GROUPS
from genai_server.engine.graph_rewriting.native_attention import NATIVE
from genai_server.engine.graph_rewriting.ragged import slot_length
from genai_server.engine.kv_cache.row import SlotSpan

# Linux would otherwise refuse more than there is memory for, written or not. Python before 3.13 has no name for it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def page_tokens(graph: DecoderGraph) -> int:
    """Tokens whose keys and values are whole pages of memory in each layer and head."""
    size = graph.head_size * np.dtype(graph.cache_type).itemsize
    return mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, size)


def _reserve(size: int) -> mmap.mmap | None:
    """Address space whose memory is allocated page by page as it is written; None if the system cannot do it.

    numpy would ask Linux for huge pages. Clearing one or two for each layer made the first use of a slot take 0.2 s.
    """
    memory = None
    if sys.platform == "linux":
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def _give_back(memory: mmap.mmap, start: int, size: int) -> None:
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_DONTNEED, start, size)


def can_reserve(graph: DecoderGraph, num_rows: int, max_length: int) -> bool:
    """Whether address space for this number of rows is available, and whether the system takes single pages back."""
    can = False
    if sys.platform == "linux":
        # A limit of the process's address space, or a system that promises no more than it has.
        with contextlib.suppress(OSError):
            CpuBuffers(graph, num_rows, max_length)
            can = True
    return can


class CpuBuffers:
    """Keys and values of all layers in CPU memory: one array [rows, kv_heads, length, head_size] each.

    Each row is longer than a sequence may have. On Linux the memory is reserved, and allocated
    page by page when written.
    """

    def __init__(self, graph: DecoderGraph, num_rows: int, max_length: int) -> None:
        length = slot_length(max_length)
        if sys.platform == "linux":
            length += -length % page_tokens(graph)  # so that the heads of a row share no page
        shape = (num_rows, graph.num_kv_heads, length, graph.head_size)
        self._names = list(zip(graph.past_names, graph.present_names, strict=True))
        self._windows = {} if graph.is_native else graph.windows
        num_values = math.prod(shape)
        # Buffers that begin at a later token also end later.
        spare = length * graph.head_size if self._windows else 0
        size = (num_values + spare) * np.dtype(graph.cache_type).itemsize
        self._memories = [_reserve(size) for _ in self._names]
        # Of each layer's keys and values.
        self.arrays: list[NDArray[Any]] = [
            (
                np.zeros(num_values + spare, graph.cache_type)
                if memory is None
                else np.frombuffer(memory, graph.cache_type)
            )[:num_values].reshape(shape)
            for memory in self._memories
        ]

    def give_back(self, slot: int, first: int) -> None:
        for memory, array in zip(self._memories, self.arrays, strict=True):
            if memory is None:
                continue
            row, head, token, _ = array.strides
            for number in range(array.shape[1]):
                start, end = first * token, head
                if start < end:
                    _give_back(memory, slot * row + number * head + start, end - start)

    def copy(self, source: int, target: int, length: int) -> None:
        for array in self.arrays:
            array[target, :, :length] = array[source, :, :length]

    def bind(self, binding: Any, spans: Sequence[SlotSpan]) -> None:
        """Bind the slots of the narrow and of the wide group as past and as present; without groups, all slots.

        A buffer that begins at a later token has the same shape: what was each head's token of this number comes first.
        """
        if not spans:
            for (past, _), array in zip(self._names, self.arrays, strict=True):
                binding.bind_input(NATIVE + past, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            return
        for group, (first, rows, start) in zip(GROUPS, spans, strict=True):
            for (past, present), array in zip(self._names, self.arrays, strict=True):
                view = array[first : first + rows]
                address = view.ctypes.data + (start * array.strides[2] if past in self._windows else 0)
                binding.bind_input(group + past, "cpu", 0, array.dtype, view.shape, address)
                binding.bind_output(group + present, "cpu", 0, array.dtype, view.shape, address)

    def keep(self, binding: Any, output: str) -> None:
        """Leave an output of a pass in CPU memory."""
        binding.bind_output(output, "cpu")
