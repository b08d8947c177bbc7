"""Tests whether products of unsigned activations and signed 8-bit weights overflow on this processor.

On x86 without VNNI, ONNX Runtime adds pairs of such products in 16 bits. With the session entry
`session.x64quantprecision` it makes the weights unsigned, which is exact there. But it does so with AMX, too, where
nothing overflows, and where the product of unsigned weights takes seven times as long because it does not use AMX. So
only a product can tell.
"""

from functools import cache

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

_IR_VERSION, _OPSET = 8, 17
_SIZE = 64
# A single row, and more, have kernels of their own.
_ROWS = (1, 2, 16, 64)
_ACTIVATION, _WEIGHT = 255, 127


@cache
def products_overflow() -> bool:
    """Whether a product of the largest values is wrong on this processor. Takes a few milliseconds, once."""
    session = onnxruntime.InferenceSession(_graph(), providers=["CPUExecutionProvider"])
    inputs = (np.full((rows, _SIZE), _ACTIVATION, np.uint8) for rows in _ROWS)
    products = (session.run(None, {"activations": each})[0] for each in inputs)
    return any((product != _SIZE * _ACTIVATION * _WEIGHT).any() for product in products)


def _graph() -> bytes:
    weights = numpy_helper.from_array(np.full((_SIZE, _SIZE), _WEIGHT, np.int8), "weights")
    given = helper.make_tensor_value_info("activations", TensorProto.UINT8, ["rows", _SIZE])
    product = helper.make_tensor_value_info("product", TensorProto.INT32, ["rows", _SIZE])
    node = helper.make_node("MatMulInteger", ["activations", "weights"], ["product"])
    graph = helper.make_graph([node], "trial", [given], [product], [weights])
    model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", _OPSET)])
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized
