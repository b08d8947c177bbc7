"""8-bit matrices made from others: the same products up to rounding, for every layout of weights."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.int8_matrices import int8_bytes, write_int8_model
from genai_server.engine.model.session_options import open_with, session_options
from genai_server.options.device import DEFAULT_OPTIONS
from scripts._models.requantized import write_requantized
from tests.running_server import DEMO

INPUTS, OUTPUTS = 96, 40


def _model(path: Path, weights: NDArray[Any], block: int, *, zeros: bool = False, bias: bool = False) -> None:
    """One MatMulNBits with these weights [outputs, inputs], whose values are in a separate file."""
    blocks = -(-weights.shape[1] // block)
    padded = np.zeros((len(weights), blocks * block), np.float32)
    padded[:, : weights.shape[1]] = weights
    padded = padded.reshape(len(weights), blocks, block)
    least = padded.min(2, keepdims=True) if zeros else -np.abs(padded).max(2, keepdims=True)
    most = padded.max(2, keepdims=True) if zeros else np.abs(padded).max(2, keepdims=True)
    scale = np.maximum((most - least) / 15, 1e-9)
    zero = np.clip(np.rint(-least / scale), 0, 15) if zeros else np.full_like(scale, 8)
    quantized = np.clip(np.rint(padded / scale) + zero, 0, 15).astype(np.uint8)
    values = {"b": quantized[..., 0::2] | quantized[..., 1::2] << 4, "s": scale[..., 0].astype(np.float32)}
    if zeros:
        pairs = np.zeros((len(weights), blocks + blocks % 2), np.uint8)
        pairs[:, :blocks] = zero[..., 0]
        values["z"] = pairs[:, 0::2] | pairs[:, 1::2] << 4
    if bias:
        values["c"] = np.linspace(-1, 1, len(weights)).astype(np.float32)
    names = ["x", "b", "s", "z" if zeros else "", "", "c" if bias else ""]
    while not names[-1]:
        names.pop()
    sizes = {"K": weights.shape[1], "N": len(weights), "bits": 4, "block_size": block}
    node = helper.make_node("MatMulNBits", names, ["y"], "product", domain="com.microsoft", **sizes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "tokens", weights.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "tokens", len(weights)])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, str(path), save_as_external_data=True, location=path.name + ".data", size_threshold=0)


def _run(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    session = open_with(path, session_options(DEFAULT_OPTIONS, 1), DEFAULT_OPTIONS)
    return np.asarray(session.run(["y"], {"x": x})[0])


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_the_same_but_for_rounding(tmp_path: Path, block: int, zeros: bool, bias: bool) -> None:
    chance = np.random.default_rng(block)
    weights = chance.normal(0.1, 1, (OUTPUTS, INPUTS - block // 2)).astype(np.float32)
    _model(tmp_path / "four.onnx", weights, block, zeros=zeros, bias=bias)
    assert write_int8_model(tmp_path / "four.onnx", tmp_path / "eight.onnx", threads=20) == 1
    x = chance.normal(0, 3, (1, 7, weights.shape[1])).astype(np.float32)
    four, eight = (_run(tmp_path / f"{name}.onnx", x) for name in ("four", "eight"))
    assert np.sqrt(np.square(four - eight).mean()) < 0.02 * four.std()


def test_a_token_of_zeros_and_one_of_huge_values_harm_no_other(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    _model(tmp_path / "four.onnx", chance.normal(0, 1, (OUTPUTS, INPUTS)).astype(np.float32), 32)
    write_int8_model(tmp_path / "four.onnx", tmp_path / "eight.onnx")
    x = chance.normal(0, 1, (1, 3, INPUTS)).astype(np.float32)
    alone = _run(tmp_path / "eight.onnx", x)
    x[0, 0], x[0, 2] = 0, x[0, 2] * 1e6
    together = _run(tmp_path / "eight.onnx", x)
    assert np.array_equal(alone[0, 1], together[0, 1])
    assert np.all(together[0, 0] == 0)


def test_a_matrix_whose_columns_have_outliers_stays_in_four_bits(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(0, 1, (OUTPUTS, INPUTS)).astype(np.float32)
    weights[:, 0] = 100
    _model(tmp_path / "four.onnx", weights, 32)
    assert write_int8_model(tmp_path / "four.onnx", tmp_path / "same.onnx") == 0
    x = np.ones((1, 2, INPUTS), np.float32)
    assert np.array_equal(_run(tmp_path / "four.onnx", x), _run(tmp_path / "same.onnx", x))


def test_int8_model_converts_all_matrices_and_keeps_the_rest(tmp_path: Path) -> None:
    model = write_requantized(DEMO, tmp_path / "model")
    nodes = onnx.load(str(model / "model.onnx")).graph.node
    sizes = [{a.name: a.i for a in node.attribute} for node in nodes if node.op_type == "MatMulNBits"]
    (tmp_path / "int8").mkdir()
    assert write_int8_model(model / "model.onnx", tmp_path / "int8" / "model.onnx") == len(sizes)
    assert int8_bytes(model / "model.onnx") == sum(size["K"] * size["N"] for size in sizes)
    written = onnx.load(str(tmp_path / "int8" / "model.onnx"))
    assert "MatMulNBits" not in {node.op_type for node in written.graph.node}
    onnxruntime.InferenceSession(str(tmp_path / "int8" / "model.onnx"), providers=["CPUExecutionProvider"])


def test_a_model_of_other_bits_has_none(tmp_path: Path) -> None:
    assert int8_bytes(DEMO / "model.onnx") == 0
    assert write_int8_model(DEMO / "model.onnx", tmp_path / "model.onnx") == 0


def _float_model(path: Path, weights: NDArray[Any], product: str) -> None:
    """A MatMul, or a Gemm with a bias and, as "Gemm by output", transposed weights. Weights are [inputs, outputs]."""
    values = {"w": weights.T.copy() if product == "Gemm by output" else weights}
    attributes: dict[str, Any] = {"transB": 1} if product == "Gemm by output" else {}
    if product != "MatMul":
        values["c"] = np.linspace(-1, 1, weights.shape[1]).astype(np.float32)
    node = helper.make_node(product.split()[0], ["x", *values], ["y"], "product", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", len(weights)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", weights.shape[1]])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))


@pytest.mark.parametrize("product", ["MatMul", "Gemm", "Gemm by output"])
def test_a_product_in_32_bits_is_the_same_but_for_rounding(tmp_path: Path, product: str) -> None:
    chance = np.random.default_rng(1)
    weights = chance.normal(0, 0.1, (510, 520)).astype(np.float32)
    _float_model(tmp_path / "float.onnx", weights, product)
    assert write_int8_model(tmp_path / "float.onnx", tmp_path / "eight.onnx", floats=True) == 1
    assert int8_bytes(tmp_path / "float.onnx", floats=True) == weights.size
    x = chance.normal(0, 3, (7, 510)).astype(np.float32)
    exact, eight = (_run(tmp_path / f"{name}.onnx", x) for name in ("float", "eight"))
    assert 0 < np.sqrt(np.square(exact - eight).mean()) < 0.02 * exact.std()


def test_matrices_in_32_bits_stay_unless_they_are_asked_for(tmp_path: Path) -> None:
    _float_model(tmp_path / "float.onnx", np.ones((510, 520), np.float32), "MatMul")
    assert int8_bytes(tmp_path / "float.onnx") == 0
    assert write_int8_model(tmp_path / "float.onnx", tmp_path / "same.onnx") == 0


@pytest.mark.parametrize("outlier", [False, True])
def test_a_float_matrix_with_outliers_or_few_values_stays(tmp_path: Path, outlier: bool) -> None:
    weights = np.random.default_rng(0).normal(0, 1, (520, 520 if outlier else 500)).astype(np.float32)
    weights[0] = 100 if outlier else 1
    _float_model(tmp_path / "float.onnx", weights, "MatMul")
    assert write_int8_model(tmp_path / "float.onnx", tmp_path / "same.onnx", floats=True) == 0
