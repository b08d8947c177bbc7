"""The memory of a batch: the KV cache, on the CPU or on the device that runs the graph (paged_buffers.py), and
recurrent states, which some layers have for each sequence in a fixed size, in place of a KV cache.

The operators of a pass write the states to the slots (engine/graph_rewriting/ragged.py), but leave out draft tokens,
because it is not known yet which of them are accepted. Afterwards a session with only these operators reads the
accepted draft tokens again, from intermediate outputs of the pass. That costs less than saving the states before each
pass, and less than reading the tokens again with the whole model.

As the state for fewer tokens cannot be computed from a later one, copies of a sequence's states are saved
(checkpoints). This is done after those numbers of prompt tokens at which other prompts are likely to differ: at the end
of the prompt, a little before the end, and where the tokens of another slot were different.
"""

import contextlib
import math
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.native_attention import COMMITTED, NATIVE, SLOTS, STARTS
from genai_server.engine.kv_cache.layout import Layout
from genai_server.options.device import DeviceOptions, device_id
from genai_server.options.providers import PROVIDERS, provider

if TYPE_CHECKING:
    from genai_server.engine.kv_cache.paged_buffers import PagedBuffers

# Linux would otherwise refuse more than there is memory for, written or not. Python before 3.13 has no name for it.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
# Tokens by which a slot grows if it would take more than _MAX_TOKENS to fill whole pages of the system's memory.
_ODD_TOKENS, _MAX_TOKENS = 64, 128
# A prompt of at least this many unread tokens has a checkpoint near its end.
_MIN_UNREAD = 32
# Tokens behind that checkpoint, at least. The next prompt of a conversation often differs in the last ones, which begin
# the answer.
_MIN_TOKENS_AFTER = 6
# Checkpoints lie at multiples of this behind cached tokens, so that prompts that differ a little have the same ones.
_GROUP = 8


def _head_bytes(graph: DecoderGraph) -> int:
    """Return the size in bytes of the keys, or of the values, of one head of a token."""
    return graph.cache_width * int(np.dtype(graph.cache_type).itemsize)


def _page_aligned_tokens(graph: DecoderGraph) -> int:
    """Return the smallest number of tokens whose keys (or values), of one head in one layer, fill whole pages of
    memory.
    """
    return mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, _head_bytes(graph))


def page_tokens(graph: DecoderGraph) -> int:
    """Return the number of tokens by which the KV cache of a slot grows.

    They fill whole pages of the system's memory, except in a KV cache of 8 bits. There a slot may have as many bytes
    more as `padding_bytes` returns.
    """
    tokens = _page_aligned_tokens(graph)
    return tokens if tokens <= _MAX_TOKENS else _ODD_TOKENS


def padding_bytes(graph: DecoderGraph) -> int:
    """Return how many bytes of memory a slot may have in addition to those of its tokens, counted in steps of
    `page_tokens`.

    In each layer, the last page of the system's memory with a head's keys or values may be used only in part.
    """
    is_whole = page_tokens(graph) == _page_aligned_tokens(graph)
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
            length += -length % _page_aligned_tokens(graph)  # so that the heads of a row share no page
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


def before_checkpoint(chunk: int, num_left: int, num_common: int = 0) -> int:
    """Return how many tokens of a prompt to read next, so that the chunk does not go beyond the next checkpoint of
    states.

    `chunk` is the number of tokens to read if no checkpoint is among them. There is a checkpoint near the end of the
    prompt, of which `num_left` tokens are unread, and one after the next `num_common` tokens if other prompts begin
    with them.
    """
    end = (num_left - _MIN_TOKENS_AFTER) // _GROUP * _GROUP if num_left >= _MIN_UNREAD else 0
    common = num_common // _GROUP * _GROUP if num_common >= _MIN_UNREAD else 0
    return min((border for border in (common, end) if 0 < border < chunk), default=chunk)


def ends_at_checkpoint(num_left: int) -> bool:
    """Whether to save a checkpoint after a chunk because only `num_left` tokens of its prompt are left.

    The next prompt of a conversation continues from the end of this prompt if it leaves out the reasoning of the
    answer. It continues from a little before the end if its chat template also leaves out the last tokens of this
    prompt.
    """
    return num_left < _MIN_UNREAD


def is_common_end(num_behind: int) -> bool:
    """Whether to save a checkpoint because the prefix that the prompt has in common with others ends `num_behind`
    tokens later, which must be only a few.
    """
    return 0 <= num_behind < _GROUP


# A copy of one row's states.
Saved = list[NDArray[Any]]


class _Drafted(NamedTuple):
    """The draft tokens of a row. Until some of them are accepted, the row's states are those before the draft."""

    # Index of the first draft token among the flat tokens of the pass.
    first: int
    # Intermediate outputs of the pass, as OrtValues [1, tokens, …] by name.
    values: Mapping[str, Any]


class RowStates:
    """The recurrent states of all layers and slots in CPU memory: one array [rows, …] for each state.

    `operators` is a session with only those operators of the graph that have states (engine/model/session.py), which is
    needed for speculative decoding; None without it.
    """

    def __init__(self, graph: DecoderGraph, num_rows: int, operators: Any = None) -> None:
        states = (*graph.conv_states, *graph.recurrent_states)
        self._states = {NATIVE + state.past: np.zeros((num_rows, *state.shape), np.float32) for state in states}
        self._audio = {
            NATIVE + state.past: np.zeros((num_rows, *state.shape), state.type) for state in graph.cross_states
        }
        # Tokens whose keys and values take as much memory as a row's states.
        self.state_size_in_tokens = graph.bytes_per_row // graph.bytes_per_token
        # The arrays that a checkpoint copies.
        self.arrays = list(self._states.values())
        self._operators = operators
        # Names of the outputs that a pass with drafts must give: what the operators have read of its tokens.
        self.read: list[str] = []
        if operators is not None:
            row_inputs = {STARTS, SLOTS, COMMITTED, *self._states}
            self.read = [name for value in operators.get_inputs() if (name := value.name) not in row_inputs]
        # By their slots, the rows of the last pass that have drafted tokens.
        self._waiting: dict[int, _Drafted] = {}

    def clear(self, row: int) -> None:
        """Set the states of a row to those before a sequence's first token."""
        self._waiting.pop(row, None)
        for array in self.arrays:
            array[row] = 0

    def save(self, row: int) -> Saved:
        """Return copies of a row's states."""
        self._waiting.pop(row, None)
        return [array[row].copy() for array in self.arrays]

    def load(self, row: int, saved: Saved) -> None:
        """Set the states of a row to copies that `save` has returned."""
        self._waiting.pop(row, None)
        for array, values in zip(self.arrays, saved, strict=True):
            array[row] = values

    def copy(self, source: int, target: int) -> None:
        """Copy the states of one row to another."""
        self._waiting.pop(target, None)
        for array in self.arrays:
            array[target] = array[source]

    def set_audio(self, row: int, audio: Sequence[NDArray[Any]]) -> None:
        """Set the encoded audio of a row: the keys and values [1, heads, frames, head_size] of all layers."""
        for array, values in zip(self._audio.values(), audio, strict=True):
            array[row] = values[0]

    def passed(self, layout: Layout, values: Mapping[str, Any]) -> None:
        """Store intermediate outputs of a pass with drafts until `accept` needs them.

        `values` are the outputs whose names are in the attribute `read`, as OrtValues.
        """
        for row, span in zip(layout.rows, layout.tokens, strict=True):
            if row.num_drafted:
                self._waiting[row.slot] = _Drafted(span.stop - row.num_drafted, values)

    def accept(self, row: int, num_tokens: int) -> None:
        """Advance the states of a row by the first `num_tokens` tokens of its draft. Does nothing without a draft."""
        drafted = self._waiting.pop(row, None)
        if drafted is None or not num_tokens:
            return
        binding = self._operators.io_binding()
        for name, value in drafted.values.items():
            channels, size = value.shape()[-1], np.dtype(np.float32).itemsize
            start = value.data_ptr() + drafted.first * channels * size
            binding.bind_input(name, "cpu", 0, np.float32, (1, num_tokens, channels), start)
        inputs = {STARTS: [0, num_tokens], SLOTS: [row], COMMITTED: [num_tokens]}
        arrays = {name: np.array(values, np.int32) for name, values in inputs.items()}  # a binding owns nothing
        for name, array in (self._states | arrays).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for value in self._operators.get_outputs():
            binding.bind_output(value.name, "cpu")
        self._operators.run_with_iobinding(binding)

    def discard_drafts(self) -> None:
        """Discard the drafts of all rows. The states stay as they were before the drafts."""
        self._waiting.clear()

    def bind(self, binding: Any) -> None:
        """Bind the states and the encoded audio of all rows as inputs in an IO binding of ONNX Runtime."""
        for name, array in (self._states | self._audio).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
