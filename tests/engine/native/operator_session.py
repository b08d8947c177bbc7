"""Sessions of graphs with operators of genai-server-native."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import genai_server_native
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.packed_products import DOMAIN

FLOAT = TensorProto.FLOAT
INTEGERS = {"starts", "slots", "committed", "pasts", "ranks", "num_ranks"}
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("com.microsoft", 1)]


def value(name: str, kind: int | None = None) -> onnx.ValueInfoProto:
    """A value of any shape; its type is that of the operators' inputs with this name, unless one is given."""
    return helper.make_tensor_value_info(name, kind or (TensorProto.INT32 if name in INTEGERS else FLOAT), None)


def session_of(graph: onnx.GraphProto, threads: int = 2, *, has_arena: bool = True) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.enable_cpu_mem_arena = options.enable_mem_pattern = has_arena
    options.register_custom_ops_library(str(genai_server_native.library()))
    model = helper.make_model(graph, ir_version=10, opset_imports=OPSETS)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def session(
    node: onnx.NodeProto,
    tensors: Mapping[str, NDArray[Any] | None] | None = None,
    kinds: Mapping[str, int] | None = None,
    threads: int = 2,
    *,
    has_arena: bool = True,
) -> Any:
    """A session of one node whose output is `y`, and whose `tensors` are constants; its other inputs are the graph's.

    `kinds` has the types of inputs that differ from the usual ones.
    """
    constants = {name: array for name, array in (tensors or {}).items() if array is not None}
    inputs = [value(name, (kinds or {}).get(name)) for name in node.input if name and name not in constants]
    given = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()]
    return session_of(helper.make_graph([node], "tested", inputs, [value("y")], given), threads, has_arena=has_arena)


def run_in_place(on: Any, rows: Mapping[str, Sequence[int]], arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """The results [tokens, …] of a pass that may write into the arrays; `rows` are its inputs of 32-bit integers."""
    binding = on.io_binding()
    for name, array in {**arrays, **{name: np.array(numbers, np.int32) for name, numbers in rows.items()}}.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "cpu")
    on.run_with_iobinding(binding)
    found: NDArray[np.float32] = binding.copy_outputs_to_cpu()[0][0]
    return found


def starts(lengths: Iterable[int]) -> list[int]:
    """Where rows of these lengths begin, and where the last one ends."""
    return [0, *itertools.accumulate(lengths)]
