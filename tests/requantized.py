"""A model of 8 bits, such as the demo model, with matrices of other forms.

They have 4 bits and blocks of 128 weights, or 32 or 16 bits, or those of feed-forward layers are experts'.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

BLOCK = 128
_EXPERTS, _CHOSEN = 4, 2


def write_requantized(source: Path, target: Path) -> Path:
    """A model directory like `source`, with matrices of 4 bits."""
    model = onnx.load(str(source / "model.onnx"))
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in [node for node in model.graph.node if node.op_type == "MatMulNBits"]:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        weights, scales = (initializers[name] for name in node.input[1:3])
        assert (attributes["bits"].i, attributes["K"].i % BLOCK, len(node.input)) == (8, 0, 3)
        attributes["bits"].i, attributes["block_size"].i = 4, BLOCK
        packed, scale = _in_four_bits(onnx.numpy_helper.to_array(weights), onnx.numpy_helper.to_array(scales))
        weights.CopyFrom(onnx.numpy_helper.from_array(packed, weights.name))
        scales.CopyFrom(onnx.numpy_helper.from_array(scale, scales.name))
    return _written(model, source, target)


def write_floats(source: Path, target: Path) -> Path:
    """A model directory like `source`, with matrices of 32 bits."""
    model = onnx.load(str(source / "model.onnx"))
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in [node for node in model.graph.node if node.op_type == "MatMulNBits"]:
        tensors = [initializers[name] for name in node.input[1:3]]
        weights, scales = map(onnx.numpy_helper.to_array, tensors)
        values = (weights.astype(np.float32) - 128) * scales.reshape(len(weights), -1, 1)
        matrix = np.ascontiguousarray(values.reshape(len(weights), -1).T)
        node.op_type, node.domain = "MatMul", ""
        del node.attribute[:], node.input[2:]
        tensors[0].CopyFrom(onnx.numpy_helper.from_array(matrix, tensors[0].name))
        model.graph.initializer.remove(tensors[1])
    return _written(model, source, target)


def write_halves(source: Path, target: Path) -> Path:
    """A model directory like `source`, which computes in 16 bits with matrices of 16 bits."""
    write_floats(source, target)
    model = onnx.load(str(target / "model.onnx"))
    constants = [node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"]
    for tensor in [*model.graph.initializer, *constants]:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for value in [*model.graph.input, *model.graph.output]:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    del model.graph.value_info[:]
    onnx.save(model, str(target / "model.onnx"))
    return target


def write_experts(source: Path, target: Path) -> Path:
    """A model directory like `source`, with experts in place of feed-forward layers: each is nearly the layer."""
    model = onnx.load(str(source / "model.onnx"))
    graph, rng = model.graph, np.random.default_rng(8)
    arrays = {tensor.name: tensor for tensor in graph.initializer}
    products = {node.output[0]: node for node in graph.node if node.op_type == "MatMulNBits"}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        name = node.name.removesuffix("/down_proj/MatMul_Q8")
        if node.op_type != "MatMulNBits" or name == node.name:
            nodes.append(node)
            continue
        gate, up = (products[f"{name}/{part}_proj/MatMul/output_0"] for part in ("gate", "up"))
        tokens, replaced = (
            gate.input[0],
            {f"{name}/Mul", f"{name}/act_fn/Mul", f"{name}/act_fn/Sigmoid", gate.name, up.name},
        )
        nodes = [one for one in nodes if one.name not in replaced]
        parts = [[onnx.numpy_helper.to_array(arrays[key]) for key in one.input[1:3]] for one in (gate, up, node)]
        (gates, gate_scales), (ups, up_scales), (weights, scales) = (
            (one.reshape(len(one), -1), scale.reshape(len(one), -1)) for one, scale in parts
        )
        router = rng.standard_normal((gates.shape[1], _EXPERTS)).astype(np.float32)
        first = np.stack([gates, ups], 1).reshape(-1, gates.shape[1])  # rows of gates and of values in turn
        first_scales = np.stack([gate_scales, up_scales], 1).reshape(len(first), -1)
        tensors: dict[str, NDArray[Any]] = {
            "router": router,
            "shape": np.array([-1, _EXPERTS], np.int64),
            "first": np.stack([first] * _EXPERTS),
            "first_scales": _varied(first_scales, rng),
            "second": np.stack([weights] * _EXPERTS),
            "second_scales": _varied(scales, rng),
        }
        graph.initializer.extend(onnx.numpy_helper.from_array(one, f"{name}.{key}") for key, one in tensors.items())
        scores, flat = f"{name}.scores", f"{name}.flat_scores"
        inputs = [tokens, flat, *(f"{name}.{key}" for key in ("first", "first_scales"))]
        inputs += ["", *(f"{name}.{key}" for key in ("second", "second_scales"))]
        attributes: dict[str, Any] = {
            "k": _CHOSEN,
            "expert_weight_bits": 8,
            "block_size": gates.shape[1] // first_scales.shape[1],
        }
        attributes |= {"activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1}
        nodes += [
            onnx.helper.make_node("MatMul", [tokens, f"{name}.router"], [scores]),
            onnx.helper.make_node("Reshape", [scores, f"{name}.shape"], [flat]),
            onnx.helper.make_node("QMoE", inputs, node.output, name, domain="com.microsoft", **attributes),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    return _written(model, source, target)


def _varied(scales: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The scales of each expert, [experts, …]."""
    varied = scales * (1 + 0.1 * rng.standard_normal((_EXPERTS, *scales.shape)))
    return varied.astype(np.float32)


def _written(model: onnx.ModelProto, source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    (target / "model.onnx.data").unlink()
    onnx.save(model, str(target / "model.onnx"))
    return target


def _in_four_bits(
    weights: NDArray[np.uint8], scales: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """From 8 bits [rows, blocks, block size] around 128 to 4 around 8, two in a byte, the lower first."""
    rows = weights.shape[0]
    values = (weights.astype(np.float32) - 128) * scales[:, :, np.newaxis]
    blocks = values.reshape(rows, -1, BLOCK)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / 7
    quantized = np.clip(np.rint(blocks / np.maximum(scale, 1e-12)) + 8, 0, 15).astype(np.uint8)
    packed = quantized[:, :, ::2] | quantized[:, :, 1::2] << 4
    return packed, scale.reshape(rows, -1)
