"""The memory that a batch of sequences needs between forward passes: the KV cache in CPU memory (`CpuBuffers`) and
recurrent states (`RowStates`). `buffers_on` chooses between the KV cache here and the one on a GPU (paged_buffers.py).

Recurrent states are what some layers, such as convolutions and linear attention, have for each sequence instead of keys
and values. Their size does not depend on the number of tokens. In a forward pass, the operators that
engine/graph_rewriting/ragged.py adds to the graph update the states in their slots. They leave out draft tokens,
because it is not known yet which of them will be accepted. After the pass, `RowStates.accept` runs a session with only
these operators, which advances the states by the accepted draft tokens and reads intermediate outputs of the pass. That
costs less than saving the states before each pass, and less than reading the accepted tokens again with the whole
model.

The state after fewer tokens cannot be computed from a later state. So that another prompt can still reuse the beginning
of a prompt, copies of a sequence's states (checkpoints) are saved after those numbers of prompt tokens at which other
prompts are likely to differ: at the end of the prompt, a little before the end, and where the tokens of another slot
were different. `before_checkpoint`, `ends_at_checkpoint` and `is_common_end` find these places.
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
    """Return the size in bytes that the keys of one token take in one attention head of one layer. The values take as
    many bytes.
    """
    return graph.cache_width * int(np.dtype(graph.cache_type).itemsize)


def _page_aligned_tokens(graph: DecoderGraph) -> int:
    """Return the smallest number of tokens whose keys (or values), in one attention head of one layer, fill whole
    memory pages of the operating system.
    """
    return mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, _head_bytes(graph))


def page_tokens(graph: DecoderGraph) -> int:
    """Return the number of tokens by which the memory of a KV cache slot grows: the size of a page of the KV cache.

    The keys (and the values) of this many tokens, in one attention head of one layer, fill whole memory pages of the
    operating system. Only with a KV cache of 8 bits may the number be smaller, because too many tokens would be needed
    to fill whole pages; `padding_bytes` returns how much memory that may cost.
    """
    tokens = _page_aligned_tokens(graph)
    return tokens if tokens <= _MAX_TOKENS else _ODD_TOKENS


def padding_bytes(graph: DecoderGraph) -> int:
    """Return how many bytes of memory a KV cache slot may take in addition to the bytes of its tokens, if tokens are
    counted in steps of `page_tokens`.

    The result is 0 if these steps fill whole memory pages of the operating system. Otherwise it is one memory page for
    the keys and one for the values of each attention head and layer, because the last page may be used only in part.
    """
    is_whole = page_tokens(graph) == _page_aligned_tokens(graph)
    return 0 if is_whole else len(graph.past_names) * graph.num_kv_heads * mmap.PAGESIZE


def _reserve(size: int) -> mmap.mmap | None:
    """Reserve `size` bytes of address space, and return them. The operating system allocates a page of memory when the
    page is first written.

    Returns None on systems other than Linux, where the caller must allocate the memory at once. Raises OSError if Linux
    refuses. A numpy array is not used on Linux, because Linux would give it huge pages, and clearing one or two of them
    for each layer made the first use of a slot take 0.2 s.
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
    """Return whether address space for a KV cache of `num_rows` slots with room for `max_length` tokens each can be
    reserved, so that memory is taken only for tokens that are written, and is returned to the operating system later.

    The reservation is tried and released at once. False on systems other than Linux, and if Linux refuses the size.
    """
    can = False
    if sys.platform == "linux":
        # A limit of the process's address space, or a system that promises no more than it has.
        with contextlib.suppress(OSError):
            CpuBuffers(graph, num_rows, max_length)
            can = True
    return can


class CpuBuffers:
    """The KV cache of all slots in CPU memory: an array of keys and an array of values for each layer.

    A slot holds the tokens of one sequence. Each array has the shape [slots, kv_heads, length, cache_width], where
    `length` is the room for tokens in each slot. On Linux only address space is reserved for the arrays, and the
    operating system allocates memory page by page as tokens are written.
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
        """Bind the KV cache arrays of all slots as inputs in `binding`, an IO binding of ONNX Runtime.

        The attention operators read the cached keys and values from these arrays, and write those of new tokens to
        them, so the graph needs no outputs for the KV cache.
        """
        for past, array in zip(self._names, self.arrays, strict=True):
            binding.bind_input(NATIVE + past, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def keep(self, binding: Any, output: str) -> None:
        """Bind the graph's output with the name `output`, in the IO binding `binding`, to CPU memory that ONNX Runtime
        allocates in each pass.
        """
        binding.bind_output(output, "cpu")


# For each kind of device memory, the provider whose sessions copy within it.
_COPIES = {"cuda": "cuda"}


BatchBuffers: TypeAlias = "CpuBuffers | PagedBuffers"
# Takes the graph, the number of rows, and the tokens of each row.
MakeBuffers = Callable[[DecoderGraph, int, int], BatchBuffers]


def buffers_on(device: str, options: DeviceOptions, max_blocks: int) -> MakeBuffers:
    """Return a function that allocates the KV cache of a batch in the memory of `device`.

    The function takes the description of the decoder graph, the number of slots, and the maximum number of tokens of a
    slot. On the CPU, it is the class `CpuBuffers`, and the other arguments are not used. On another device, the KV
    cache has at most `max_blocks` blocks of tokens, and the provider option `device_id` in `options` says which of
    several GPUs is used.
    """
    memory = PROVIDERS[device.partition(":")[0]].memory
    if memory == "cpu":
        return CpuBuffers
    from genai_server.engine.kv_cache.paged_buffers import MemoryDevice, PagedBuffers  # loads ONNX Runtime

    memory_device = MemoryDevice(memory, device_id(options), provider(_COPIES[memory]).onnxruntime)
    return partial(PagedBuffers, memory_device, max_blocks)


def before_checkpoint(chunk: int, num_left: int, num_common: int = 0) -> int:
    """Return how many prompt tokens the next pass should read, so that it ends where a checkpoint is to be saved, if
    such a place is among the next tokens. A checkpoint is a copy of a sequence's recurrent states.

    `chunk` is the number of tokens that the pass would read otherwise, and the maximum of the result. `num_left` is the
    number of unread tokens of the prompt, near whose end a checkpoint is saved. `num_common` is the number of unread
    tokens with which other prompts begin, too; a checkpoint is saved after these. Checkpoints are left out where only a
    few tokens would be between them and the tokens that are already read.
    """
    end = (num_left - _MIN_TOKENS_AFTER) // _GROUP * _GROUP if num_left >= _MIN_UNREAD else 0
    common = num_common // _GROUP * _GROUP if num_common >= _MIN_UNREAD else 0
    return min((border for border in (common, end) if 0 < border < chunk), default=chunk)


def ends_at_checkpoint(num_left: int) -> bool:
    """Return whether a checkpoint (a copy of a sequence's recurrent states) is to be saved after a pass has read a part
    of a prompt, because at most a few tokens, `num_left`, of the prompt are unread.

    The next prompt of a conversation continues from the end of this prompt if it leaves out the reasoning of the
    answer. It continues from a little before the end if its chat template also leaves out the last tokens of this
    prompt.
    """
    return num_left < _MIN_UNREAD


def is_common_end(num_behind: int) -> bool:
    """Return whether a checkpoint (a copy of a sequence's recurrent states) is to be saved now, because the beginning
    that the prompt has in common with other prompts ends here or a few tokens later.

    `num_behind` is the number of tokens from here to the end of the common beginning; negative if that end has been
    passed.
    """
    return 0 <= num_behind < _GROUP


# A copy of one row's states.
Saved = list[NDArray[Any]]


class _Drafted(NamedTuple):
    """The draft tokens of a slot after a pass that has read them. Until some of them are accepted, the slot's recurrent
    states are those before the draft.
    """

    # Index of the first draft token among the flat tokens of the pass.
    first: int
    # Intermediate outputs of the pass, as OrtValues [1, tokens, …] by name.
    values: Mapping[str, Any]


class RowStates:
    """The recurrent states of all KV cache slots in CPU memory, and the encoded audio of models that transcribe. The
    batched runner creates it; it is empty for models that have neither.

    There is one array [slots, …] for each state of each layer. A row is the part of all these arrays that belongs to
    one slot; methods take the slot's number as `row`. `operators` is an ONNX Runtime session with only those operators
    of the graph that have states (engine/model/session.py). Speculative decoding needs it, to advance states by
    accepted draft tokens; None without speculative decoding.
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
        """Set the recurrent states of the KV cache slot number `row` to zero, as they are before a sequence's first
        token.
        """
        self._waiting.pop(row, None)
        for array in self.arrays:
            array[row] = 0

    def save(self, row: int) -> Saved:
        """Return copies of the recurrent states of the KV cache slot number `row`, which later passes do not change. A
        draft in the slot that was not accepted is discarded.
        """
        self._waiting.pop(row, None)
        return [array[row].copy() for array in self.arrays]

    def load(self, row: int, saved: Saved) -> None:
        """Set the recurrent states of the KV cache slot number `row` to copies that `save` has returned for this slot
        or another one. A draft in the slot that was not accepted is discarded.
        """
        self._waiting.pop(row, None)
        for array, values in zip(self.arrays, saved, strict=True):
            array[row] = values

    def copy(self, source: int, target: int) -> None:
        """Copy the recurrent states of the KV cache slot number `source` to the slot number `target`, and discard a
        draft in `target` that was not accepted.
        """
        self._waiting.pop(target, None)
        for array in self.arrays:
            array[target] = array[source]

    def set_audio(self, row: int, audio: Sequence[NDArray[Any]]) -> None:
        """Store encoded audio for the KV cache slot number `row`; the decoder reads it in each pass. `audio` has, in
        the order of the layers, arrays of keys and of values [1, heads, frames, head_size].
        """
        for array, values in zip(self._audio.values(), audio, strict=True):
            array[row] = values[0]

    def passed(self, layout: Layout, values: Mapping[str, Any]) -> None:
        """Keep the intermediate outputs of a pass that has read draft tokens, until `accept` needs them to advance the
        states.

        `layout` describes the tokens of the pass. `values` are OrtValues of ONNX Runtime by the names of the outputs,
        which are the names in the attribute `read`.
        """
        for row, span in zip(layout.rows, layout.tokens, strict=True):
            if row.num_drafted:
                self._waiting[row.slot] = _Drafted(span.stop - row.num_drafted, values)

    def accept(self, row: int, num_tokens: int) -> None:
        """Advance the recurrent states of the KV cache slot number `row` by the first `num_tokens` draft tokens of the
        last pass, which were accepted. The other draft tokens are discarded. Does nothing if the slot had no draft.
        """
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
        """Discard all draft tokens that were not accepted; called before each pass. The recurrent states do not change,
        because drafts have not changed them yet.
        """
        self._waiting.clear()

    def bind(self, binding: Any) -> None:
        """Bind the arrays with the recurrent states and the encoded audio of all KV cache slots as inputs in `binding`,
        an IO binding of ONNX Runtime. The graph's operators change the states in place.
        """
        for name, array in (self._states | self._audio).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
