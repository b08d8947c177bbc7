"""The KV cache of a batch on a device with memory of its own, such as a GPU (`PagedBuffers`). The memory is divided
into blocks, each with the keys and values of a fixed number of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.paged_attention import BLOCKS, BOUNDS, PAGED
from genai_server.engine.kv_cache.layout import Row
from genai_server.errors import RunnerFailed

_IR_VERSION, _OPSET = 8, 16


@dataclass(frozen=True)
class MemoryDevice:
    """A device in whose memory the KV cache is allocated, such as one of several GPUs, and the execution provider of
    ONNX Runtime that runs sessions there.
    """

    # ONNX Runtime's kind of device.
    device_type: str
    # The number of the device among its kind.
    device_id: int
    # The provider which runs sessions on it.
    provider: str


def num_blocks(graph: DecoderGraph, num_tokens: int) -> int:
    """Return the number of KV cache blocks that `num_tokens` tokens of one sequence need, with the size of a block that
    `graph` names.
    """
    return -(-num_tokens // graph.block_tokens)


class PagedBuffers:
    """The KV cache of all layers in a device's memory. A slot, which belongs to one sequence, gets blocks as tokens are
    added, and the attention operator finds them in a table of block numbers.

    The keys and the values of each layer have a pool each, an array [blocks, block_tokens, kv_heads, head_size]. All
    memory is allocated at once: as many blocks as `num_rows` slots of `max_length` tokens can use, but at most
    `max_blocks`. Raises RuntimeError with ONNX Runtime's reason if there is no such device, or its memory is too small.
    """

    def __init__(
        self, device: MemoryDevice, max_blocks: int, graph: DecoderGraph, num_rows: int, max_length: int
    ) -> None:
        self._device, self._graph = device, graph
        self._names = list(zip(graph.past_names, graph.present_names, strict=True))
        self._dtype, self._logits_type = np.dtype(graph.cache_type), np.dtype(graph.logits_type)
        self._shape = (graph.block_tokens, graph.num_kv_heads, graph.head_size)
        self._block_bytes = int(np.prod(self._shape)) * self._dtype.itemsize
        _allocate_as_requested()
        count = min(max_blocks, num_rows * num_blocks(graph, max_length))
        self._pools = [
            onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                (count, *self._shape), self._dtype.type, device.device_type, device.device_id
            )
            for _ in self._names
        ]
        self._free = list(range(count))
        # The blocks of each slot, in the order of its tokens.
        self._blocks: list[list[int]] = [[] for _ in range(num_rows)]
        self._mover, self._reader = self._open_mover(), self._open_reader()

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first `length` tokens from the slot `source` to the slot `target`, which are
        numbers of slots. Raises RunnerFailed if ONNX Runtime reports an error.
        """
        binding = self._mover.io_binding()
        for source_block, target_block in zip(self._blocks[source], self._take(target, length), strict=False):
            for number, pool in enumerate(self._pools):
                binding.bind_input(f"from{number}", *self._block(pool, source_block))
                binding.bind_output(f"to{number}", *self._block(pool, target_block))
            _run(self._mover, binding)

    def give_back(self, slot: int, first: int) -> None:
        num_kept = num_blocks(self._graph, first)
        self._free += self._blocks[slot][num_kept:]
        del self._blocks[slot][num_kept:]

    def bind(self, binding: Any) -> None:
        """Bind each pool, in the IO binding `binding`, both as the graph's input with the past KV cache and as its
        output with the present KV cache, so that a pass changes the pool in place.
        """
        for (past, present), pool in zip(self._names, self._pools, strict=True):
            where = (self._device.device_type, self._device.device_id, self._dtype.type, pool.shape(), pool.data_ptr())
            binding.bind_input(PAGED + past, *where)
            binding.bind_output(PAGED + present, *where)

    def inputs(self, rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
        """Return the input that tells a pass which blocks the KV cache of each sequence has, by the name of the input:
        a table [rows, blocks] of block numbers, in which shorter rows are padded with 0. `rows` has one entry for each
        sequence of the pass.

        As a side effect, slots get the blocks that the tokens of this pass need.
        """
        blocks = [self._take(row.slot, row.num_cached + len(row.tokens)) for row in rows]
        table = np.zeros((len(rows), max(map(len, blocks))), np.int32)
        for line, row_blocks in zip(table, blocks, strict=True):
            line[: len(row_blocks)] = row_blocks
        return {BLOCKS: table}

    def give(self, binding: Any, name: str, values: NDArray[Any]) -> None:
        """Copy `values`, the graph's input called `name`, to the device, and bind the copy in the IO binding `binding`.
        Raises RunnerFailed if ONNX Runtime reports an error.

        An input in CPU memory could be bound as well, and ONNX Runtime would copy it. In a profile on an H100, that
        took 0.2 ms for each input.
        """
        on = ("cpu", 0) if name == BOUNDS else (self._device.device_type, self._device.device_id)
        try:
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(values, *on))
        except RuntimeError as error:
            raise RunnerFailed(f"onnxruntime: {error}") from error

    def keep(self, binding: Any, output: str) -> None:
        """Bind the graph's output with the name `output`, in the IO binding `binding`, to memory of the device that
        ONNX Runtime allocates in each pass. The result thus stays on the device.
        """
        binding.bind_output(output, self._device.device_type, self._device.device_id)

    def read(self, logits: Any, rows: range) -> NDArray[np.float32]:
        """Copy the logits at some positions from the device to the host. Returns them as 32-bit floats [positions,
        vocab_size].

        `logits` is an OrtValue [1, positions, vocab_size] on the device, and `rows` is the range of positions to copy.
        Raises RunnerFailed if ONNX Runtime reports an error.
        """
        _, _, vocab_size = logits.shape()
        floats = np.empty((len(rows), vocab_size), np.float32)
        binding = self._reader.io_binding()
        address = logits.data_ptr() + rows.start * vocab_size * self._logits_type.itemsize
        where = self._device.device_type, self._device.device_id, self._logits_type.type
        binding.bind_input("logits", *where, floats.shape, address)
        binding.bind_output("floats", "cpu", 0, np.float32, floats.shape, floats.ctypes.data)
        _run(self._reader, binding)
        return floats

    def _take(self, slot: int, length: int) -> list[int]:
        """Return the numbers of the blocks for the first `length` tokens of a slot. Blocks that the slot does not have
        yet are assigned to it; the caller must have made sure that enough blocks are free.
        """
        blocks, needed = self._blocks[slot], num_blocks(self._graph, length)
        while len(blocks) < needed:
            blocks.append(self._free.pop())
        return blocks[:needed]

    def _block(self, pool: Any, number: int) -> tuple[Any, ...]:
        """Return the arguments with which an IO binding binds one block of a pool: device, type, shape and address."""
        address = pool.data_ptr() + number * self._block_bytes
        return self._device.device_type, self._device.device_id, self._dtype.type, self._shape, address

    def _open_mover(self) -> Any:
        """Open a session that copies one block in each pool to another block, and return it. ONNX Runtime has no
        function for this.
        """
        kind, count = helper.np_dtype_to_tensor_dtype(self._dtype), len(self._names)

        def named(name: str) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(f"{name}{i}", kind, self._shape) for i in range(count)]

        nodes = [helper.make_node("Identity", [f"from{i}"], [f"to{i}"]) for i in range(count)]
        return self._open(helper.make_graph(nodes, "move", named("from"), named("to")))

    def _open_reader(self) -> Any:
        """Open a session that converts logits on the device to 32-bit floats, and return it."""
        kind, shape = helper.np_dtype_to_tensor_dtype(self._logits_type), ["rows", "vocab_size"]
        logits = helper.make_tensor_value_info("logits", kind, shape)
        floats = helper.make_tensor_value_info("floats", onnx.TensorProto.FLOAT, shape)
        node = helper.make_node("Cast", ["logits"], ["floats"], to=onnx.TensorProto.FLOAT)
        return self._open(helper.make_graph([node], "read", [logits], [floats]))

    def _open(self, graph: onnx.GraphProto) -> Any:
        """Open a session of ONNX Runtime that runs `graph` on the device, and return it. Raises RuntimeError with ONNX
        Runtime's reason if that fails.
        """
        model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", _OPSET)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        provider = (
            self._device.provider,
            {} if self._device.device_type == "cpu" else {"device_id": str(self._device.device_id)},
        )
        content = model.SerializeToString()
        try:
            return onnxruntime.InferenceSession(content, options, providers=[provider], enable_fallback=0)
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RuntimeError(str(error)) from error


def _allocate_as_requested() -> None:
    """Make ONNX Runtime allocate no more of a GPU's memory for OrtValues than these need, for the whole process.

    By default ONNX Runtime doubles its memory arena each time, and sessions cannot use the rest of it. There is no
    public name for this setting. Does nothing in packages that lack the setting: packages without CUDA, and perhaps
    later versions.
    """
    library = onnxruntime.capi.onnxruntime_pybind11_state
    if (choose := getattr(library, "set_arena_extend_strategy", None)) is not None:
        choose(library.ArenaExtendStrategy.kSameAsRequested)


def _run(session: Any, binding: Any) -> None:
    try:
        session.run_with_iobinding(binding)
    except RuntimeError as error:
        raise RunnerFailed(f"onnxruntime: {error}") from error
