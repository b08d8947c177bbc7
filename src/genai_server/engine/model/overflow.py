"""Whether this processor's 8-bit products overflow."""

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

_ERRORS = 3  # ONNX Runtime's level of severity
_PROVIDER = "CPUExecutionProvider"
_DEPTH, _WIDTH = 64, 16
# Kernels for one row and for several rows may differ.
_ROWS = (1, 16)


@cache
def products_overflow() -> bool:
    """Whether sums of products of unsigned activations and signed weights are wrong on this processor.

    x86 processors without VNNI add pairs of products in 16 bits, which the largest values exceed.
    """
    weights = np.full((_DEPTH, _WIDTH), np.iinfo(np.int8).max, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["activations", "weights"], ["sums"])],
        "products",
        [helper.make_tensor_value_info("activations", TensorProto.UINT8, ["rows", _DEPTH])],
        [helper.make_tensor_value_info("sums", TensorProto.INT32, ["rows", _WIDTH])],
        [numpy_helper.from_array(weights, "weights")],
    )
    session = _open(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))
    for rows in _ROWS:
        activations = np.full((rows, _DEPTH), np.iinfo(np.uint8).max, np.uint8)
        (sums,) = session.run(None, {"activations": activations})
        if not np.array_equal(sums, activations.astype(np.int32) @ weights.astype(np.int32)):
            return True
    return False


def _open(model: onnx.ModelProto) -> Any:
    """A session for a model, with a thread of its own if the process allows that."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, _ERRORS
    data = model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(data, options, providers=[_PROVIDER], enable_fallback=0)
    except RuntimeError:  # the process has one thread pool for all sessions
        options.use_per_session_threads = False
        return onnxruntime.InferenceSession(data, options, providers=[_PROVIDER], enable_fallback=0)
