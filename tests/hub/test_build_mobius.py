"""What becomes of the products that mobius writes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from genai_server.hub import build_mobius

SIZE = 64
NAMES = [
    *(f"model/layers.{n}/self_attn/{part}/MatMul" for n in range(16) for part in ("q_proj", "v_proj")),
    "model/layers.0/mlp/gate/MatMul",
    "lm_head/MatMul",
]


def in_a_row(path: Path) -> None:
    """Write a graph of products, each of which reads the one before it."""
    random = np.random.default_rng(5)
    weights = {name: random.normal(size=(SIZE, SIZE)).astype(np.float32) / SIZE**0.5 for name in NAMES}
    ends = ["x", *(f"y{n}" for n in range(len(NAMES)))]
    nodes = [
        helper.make_node("MatMul", [ends[n], f"{name}.weight"], [ends[n + 1]], name=name)
        for n, name in enumerate(NAMES)
    ]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", SIZE]) for n in ("x", ends[-1]))
    initializers = [numpy_helper.from_array(value, f"{name}.weight") for name, value in weights.items()]
    graph = helper.make_graph(nodes, "row", [given], [made], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))


def bits_of(path: Path) -> dict[str, int]:
    """The bits of each product's weights, by the name that it had."""
    found = {}
    for node in onnx.load(str(path), load_external_data=False).graph.node:
        given = {attribute.name: attribute.i for attribute in node.attribute}
        name, bits = node.name.rpartition("_Q")[0] or node.name, given.get("bits", 32)
        assert bits == 32 or (given["block_size"], given["accuracy_level"]) == (32, 4)
        found[name] = bits
    return found


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.05), (4, 0.5)])
def test_products_get_their_bits_and_stay_close(tmp_path: Path, bits: int, tolerance: float) -> None:
    full, built = tmp_path / "full.onnx", tmp_path / "model.onnx"
    in_a_row(full)
    build_mobius.quantize(full, built, bits)
    found = bits_of(built)
    assert found["model/layers.0/mlp/gate/MatMul"] == 32
    assert found["lm_head/MatMul"] == 8
    assert {found[f"model/layers.{n}/self_attn/q_proj/MatMul"] for n in range(16)} == {bits}
    wide = [n for n in range(16) if found[f"model/layers.{n}/self_attn/v_proj/MatMul"] == 8]
    assert wide == (list(range(16)) if bits == 8 else [0, 1, 4, 7, 10, 13, 14, 15])
    x = np.random.default_rng(6).normal(size=(3, SIZE)).astype(np.float32)
    expected, y = (
        np.asarray(onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0])
        for path in (full, built)
    )
    assert np.abs(y - expected).mean() < tolerance * np.abs(expected).mean()


def test_joined_products_are_named_by_their_layer() -> None:
    """Queries, keys and values come from one product, with and without a bias."""
    nodes = []
    for layer, has_bias in enumerate((False, True)):
        nodes.append(helper.make_node("MatMul", ["x", "w"], [f"product{layer}"], name=f"node_MatMul_{layer}"))
        joined = f"product{layer}"
        if has_bias:
            nodes.append(helper.make_node("Add", [joined, "bias"], [f"sum{layer}"], name=f"node_Add_{layer}"))
            joined = f"sum{layer}"
        cache = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        attention = [joined, "", "", *cache, "lengths", "total"]
        nodes.append(helper.make_node("GroupQueryAttention", attention, [f"y{layer}"], domain="com.microsoft"))
    graph = helper.make_graph(nodes, "attention", [], [])
    build_mobius.name_joined(graph)
    names = [node.name for node in graph.node if node.op_type == "MatMul"]
    assert names == [f"model/layers.{n}/self_attn/qkv_proj/node_MatMul_{n}" for n in range(2)]
    assert build_mobius.is_sensitive(names[0], layers=8)
    assert not build_mobius.is_sensitive(names[1].replace("layers.1", "layers.2"), layers=8)
