"""Memory for the keys and values of a batch on a device with its own memory, such as a GPU."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.model.ragged import slot_length
from genai_server.errors import RunnerFailed

_IR_VERSION, _OPSET = 8, 16


@dataclass(frozen=True)
class Place:
    """Where memory lies."""

    # ONNX Runtime's kind of device.
    device_type: str
    # The number of the device among its kind.
    device_id: int
    # The provider which runs sessions on it.
    provider: str


class DeviceBuffers:
    """Keys and values of all layers in a device's memory: one array [rows, kv_heads, length, head_size] each.

    The interface is that of CpuBuffers. All memory is allocated at once. Whole rows are copied whatever the length,
    because this is faster than telling a device which pieces to copy.

    Raises RuntimeError with ONNX Runtime's reason if there is no such device, or if its memory is too small.
    """

    def __init__(self, place: Place, graph: DecoderGraph, num_rows: int, max_length: int) -> None:
        self._place = place
        self._names = list(zip(graph.past_names, graph.present_names, strict=True))
        self._row_shape = (graph.num_kv_heads, slot_length(max_length), graph.head_size)
        self._dtype = np.dtype(graph.cache_type)
        self._row_bytes = int(np.prod(self._row_shape)) * self._dtype.itemsize
        nothing = np.zeros((num_rows, *self._row_shape), self._dtype)
        self._values = [
            onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                nothing.shape, self._dtype.type, place.device_type, place.device_id
            )
            for _ in self._names
        ]
        for value in self._values:
            value.update_inplace(nothing)
        self._move_all, self._move_one = self._mover(len(self._names)), self._mover(1)

    def copy(self, source: int, target: int, length: int) -> None:
        if not length:
            return
        binding = self._move_all.io_binding()
        for number, value in enumerate(self._values):
            binding.bind_input(f"from{number}", *self._part(value, source))
            binding.bind_output(f"to{number}", *self._part(value, target))
        try:
            self._move_all.run_with_iobinding(binding)
        except RuntimeError as error:
            raise RunnerFailed(f"onnxruntime: {error}") from error

    def give_back(self, slot: int, first: int) -> None:
        """Does nothing: all memory stays allocated."""

    def bind(self, binding: Any, first: int, rows: int, part: str = "") -> None:
        """Bind the slots `first` to `first + rows` as past and as present, whose names begin with `part`."""
        for (past, present), value in zip(self._names, self._values, strict=True):
            binding.bind_input(part + past, *self._part(value, first, rows))
            binding.bind_output(part + present, *self._part(value, first, rows))

    def keep(self, binding: Any, output: str) -> None:
        """Leave an output of a pass on the device."""
        binding.bind_output(output, self._place.device_type, self._place.device_id)

    def write(self, slot: int, present: str, values: NDArray[Any]) -> None:
        """Write keys or values of the first tokens from CPU memory to a slot."""
        index = next(i for i, (_, name) in enumerate(self._names) if name == present)
        row = np.zeros(self._row_shape, self._dtype)
        row[:, : values.shape[2]] = values[0]
        binding = self._move_one.io_binding()
        binding.bind_cpu_input("from0", row)
        binding.bind_output("to0", *self._part(self._values[index], slot))
        self._move_one.run_with_iobinding(binding)

    def _part(self, value: Any, first: int, rows: int | None = None) -> tuple[Any, ...]:
        """The arguments that bind `rows` rows; without `rows`, those of one row as an array [kv_heads, …]."""
        shape = self._row_shape if rows is None else (rows, *self._row_shape)
        address = value.data_ptr() + first * self._row_bytes
        return self._place.device_type, self._place.device_id, self._dtype.type, shape, address

    def _mover(self, count: int) -> Any:
        """A session that copies `count` rows at once. ONNX Runtime has no call for this."""
        kind = helper.np_dtype_to_tensor_dtype(self._dtype)

        def named(name: str) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(f"{name}{i}", kind, self._row_shape) for i in range(count)]

        nodes = [helper.make_node("Identity", [f"from{i}"], [f"to{i}"]) for i in range(count)]
        graph = helper.make_graph(nodes, "move", named("from"), named("to"))
        model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", _OPSET)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        provider = (
            self._place.provider,
            {} if self._place.device_type == "cpu" else {"device_id": str(self._place.device_id)},
        )
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider], enable_fallback=0)
