"""Sessions with the server's defaults compute 8-bit products rightly on every processor."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.model.session_options import open_with, session_options
from genai_server.options.device import DEFAULT_OPTIONS


def write_int8_product(path: Path, depth: int, columns: int) -> Path:
    """A graph that multiplies unsigned activations [rows, depth] by the weights 127 [depth, columns]."""
    weights = numpy_helper.from_array(np.full((depth, columns), 127, np.int8), "weights")
    given = helper.make_tensor_value_info("activations", TensorProto.UINT8, ["rows", depth])
    sums = helper.make_tensor_value_info("sums", TensorProto.INT32, ["rows", columns])
    node = helper.make_node("MatMulInteger", ["activations", "weights"], ["sums"])
    graph = helper.make_graph([node], "product", [given], [sums], [weights])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def test_int8_products_of_a_session_do_not_overflow(tmp_path: Path) -> None:
    depth = 512
    product = write_int8_product(tmp_path / "product.onnx", depth, columns=32)
    session = open_with(product, session_options(DEFAULT_OPTIONS, 1), DEFAULT_OPTIONS)
    for rows in (1, 3, 16, 40):
        (sums,) = session.run(None, {"activations": np.full((rows, depth), 255, np.uint8)})
        assert (sums == 255 * 127 * depth).all()
