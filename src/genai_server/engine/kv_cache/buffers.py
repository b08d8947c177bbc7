"""The memory for the KV cache of a batch, on the CPU or on the device that runs the graph (paged_buffers.py)."""

import contextlib
import math
import mmap
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.native_attention import NATIVE
from genai_server.options.device import DeviceOptions, device_id
from genai_server.options.providers import PROVIDERS, provider

if TYPE_CHECKING:
    from genai_server.engine.kv_cache.paged_buffers import PagedBuffers

# Linux would otherwise refuse more than there is memory for, written or not. Python before 3.13 has no name for it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


# Tokens by which a slot grows if it would take more than _MAX_TOKENS to fill whole pages of the system's memory.
_ODD_TOKENS, _MAX_TOKENS = 64, 128


def _head_bytes(graph: DecoderGraph) -> int:
    """Return the size in bytes of the keys, or of the values, of one head of a token."""
    return graph.cache_width * int(np.dtype(graph.cache_type).itemsize)


def _whole_tokens(graph: DecoderGraph) -> int:
    """Return the smallest number of tokens whose keys (or values), of one head in one layer, fill whole pages of
    memory.
    """
    return mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, _head_bytes(graph))


def page_tokens(graph: DecoderGraph) -> int:
    """Return the number of tokens by which the KV cache of a slot grows.

    They fill whole pages of the system's memory, except in a KV cache of 8 bits. There a slot may have as many bytes
    more as `rest_bytes` returns.
    """
    tokens = _whole_tokens(graph)
    return tokens if tokens <= _MAX_TOKENS else _ODD_TOKENS


def rest_bytes(graph: DecoderGraph) -> int:
    """Return how many bytes of memory a slot may have in addition to those of its tokens, counted in steps of
    `page_tokens`.

    In each layer, the last page of the system's memory with a head's keys or values may be used only in part.
    """
    is_whole = page_tokens(graph) == _whole_tokens(graph)
    return 0 if is_whole else len(graph.past_names) * graph.num_kv_heads * mmap.PAGESIZE


def _reserve(size: int) -> mmap.mmap | None:
    """Reserve `size` bytes of address space. The operating system allocates a page of memory when the page is first
    written.

    Returns None if the operating system cannot do that. For an array of numpy, Linux would use huge pages, and clearing
    one or two of them for each layer made the first use of a slot take 0.2 s.
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
    """Whether address space for a KV cache of `num_rows` slots can be reserved, and pages that are no longer used can
    be returned to the operating system. False on other systems than Linux.

    Each slot has room for `max_length` tokens.
    """
    can = False
    if sys.platform == "linux":
        # A limit of the process's address space, or a system that promises no more than it has.
        with contextlib.suppress(OSError):
            CpuBuffers(graph, num_rows, max_length)
            can = True
    return can


class CpuBuffers:
    """The KV cache of all slots in CPU memory: an array of keys and one of values for each layer.

    The arrays are [slots, kv_heads, length, cache_width]. On Linux only address space is reserved for them, and memory
    is allocated page by page when it is written.
    """

    def __init__(self, graph: DecoderGraph, num_rows: int, max_length: int) -> None:
        length = max_length
        if sys.platform == "linux":
            length += -length % _whole_tokens(graph)  # so that the heads of a row share no page
        shape = (num_rows, graph.num_kv_heads, length, graph.cache_width)
        self._names = graph.past_names
        size = math.prod(shape) * np.dtype(graph.cache_type).itemsize
        self._memories = [_reserve(size) for _ in self._names]
        # The keys and the values of each layer, in turn.
        self.arrays: list[NDArray[Any]] = [
            (np.zeros(shape, graph.cache_type) if memory is None else np.frombuffer(memory, graph.cache_type)).reshape(
                shape
            )
            for memory in self._memories
        ]

    def give_back(self, slot: int, first: int) -> None:
        for memory, array in zip(self._memories, self.arrays, strict=True):
            if memory is None:
                continue
            row, head, token, _ = array.strides
            for number in range(array.shape[1]):
                start, end = -(-first * token // mmap.PAGESIZE) * mmap.PAGESIZE, head
                if start < end:
                    _give_back(memory, slot * row + number * head + start, end - start)

    def copy(self, source: int, target: int, length: int) -> None:
        for array in self.arrays:
            array[target, :, :length] = array[source, :, :length]

    def bind(self, binding: Any) -> None:
        """Bind the KV cache of all slots as inputs in an IO binding of ONNX Runtime. The attention operators also write
        to it.
        """
        for past, array in zip(self._names, self.arrays, strict=True):
            binding.bind_input(NATIVE + past, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def keep(self, binding: Any, output: str) -> None:
        """Bind an output to CPU memory that ONNX Runtime allocates in each pass."""
        binding.bind_output(output, "cpu")


# For each kind of device memory, the provider whose sessions copy within it.
_COPIES = {"cuda": "cuda"}


BatchBuffers: TypeAlias = "CpuBuffers | PagedBuffers"
# Takes the graph, the number of rows, and the tokens of each row.
MakeBuffers = Callable[[DecoderGraph, int, int], BatchBuffers]


def buffers_on(device: str, options: DeviceOptions, max_blocks: int) -> MakeBuffers:
    """Return a function that allocates the KV cache of a batch on a device.

    Unless that is the CPU, the KV cache has at most `max_blocks` blocks, and the option `device_id` of the first
    execution provider selects the device.
    """
    memory = PROVIDERS[device.partition(":")[0]].memory
    if memory == "cpu":
        return CpuBuffers
    from genai_server.engine.kv_cache.paged_buffers import MemoryDevice, PagedBuffers  # loads ONNX Runtime

    memory_device = MemoryDevice(memory, device_id(options), provider(_COPIES[memory]).onnxruntime)
    return partial(PagedBuffers, memory_device, max_blocks)
