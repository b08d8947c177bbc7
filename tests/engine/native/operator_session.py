"""Sessions of graphs with operators of genai-server-native."""

from collections.abc import Sequence
from typing import Any

import genai_server_native
import onnx
import onnxruntime
from onnx import TensorProto, helper

from genai_server.engine.graph_rewriting.packed_products import DOMAIN


def session(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    tensors: Sequence[TensorProto] = (),
    threads: int = 2,
) -> Any:
    """A session of a graph whose output is `y`, in 32-bit floats; `tensors` are its constants."""
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "tested", inputs, [output], list(tensors))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.register_custom_ops_library(str(genai_server_native.library()))
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
