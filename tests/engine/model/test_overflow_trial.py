"""8-bit products of the largest values are exact with the server's own options, on any processor."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.model.overflow_trial import products_overflow
from genai_server.engine.model.session_options import open_with, session_options
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from genai_server.options.session import PRECISION

INPUTS, OUTPUTS = 96, 40


def _sums_are_exact(path: Path, options: DeviceOptions) -> bool:
    """Whether a product of 128 less than 255 with 127 and -128 is right, alone and with other rows."""
    weights = np.where(np.arange(OUTPUTS) % 2, 127, -128).astype(np.int8) * np.ones((INPUTS, 1), np.int8)
    zero = numpy_helper.from_array(np.array(128, np.uint8), "zero")
    node = helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])
    given = helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", INPUTS])
    product = helper.make_tensor_value_info("y", TensorProto.INT32, ["rows", OUTPUTS])
    graph = helper.make_graph([node], "g", [given], [product], [numpy_helper.from_array(weights, "w"), zero])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    session = open_with(path, session_options(options, 1), options)
    return all(
        np.array_equal(session.run(None, {"x": np.full((rows, INPUTS), 255, np.uint8)})[0][0], 127 * weights.sum(0))
        for rows in (1, 7, 130)
    )


def test_products_are_exact_with_the_default_options(tmp_path: Path) -> None:
    assert _sums_are_exact(tmp_path / "model.onnx", DEFAULT_OPTIONS)


@pytest.mark.skipif(products_overflow(), reason="on this processor they do")
def test_where_nothing_overflows_products_need_no_entry(tmp_path: Path) -> None:
    assert _sums_are_exact(tmp_path / "model.onnx", DeviceOptions(entries={PRECISION: "0"}))


@pytest.mark.skipif(not products_overflow(), reason="on this processor they do not")
def test_where_products_overflow_they_need_the_entry(tmp_path: Path) -> None:
    assert not _sums_are_exact(tmp_path / "model.onnx", DeviceOptions(entries={PRECISION: "0"}))
