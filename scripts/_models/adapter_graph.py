"""Inputs for LoRA adapters in a decoder's graph, and files of adapters for them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

MATRICES = ("MatMul", "MatMulNBits")


def inputs_of(node: str) -> tuple[str, str]:
    """The names of the two small matrices next to a large one."""
    path = node.strip("/").rpartition("/")[0].replace("/", ".")
    return f"{path}.lora_A.weight", f"{path}.lora_B.weight"


def add_path(graph: onnx.GraphProto, node: onnx.NodeProto) -> tuple[int, int]:
    """Add x·A·B to what the matrix of a node gives; returns the sizes [in, out] of the matrix."""
    size = {attribute.name: attribute.i for attribute in node.attribute}
    if "K" not in size:
        (weights,) = [tensor.dims for tensor in graph.initializer if tensor.name == node.input[1]]
        size = {"K": weights[0], "N": weights[1]}
    a, b = inputs_of(node.name)
    rank = f"rank of {node.name}"  # ONNX Runtime takes what is called alike to be of one size
    for name, shape in ((a, [size["K"], rank]), (b, [rank, size["N"]])):
        graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        empty = [0 if dim == rank else dim for dim in shape]
        graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, empty, []))
    given, place = node.output[0], list(graph.node).index(node)
    node.output[0] = f"{given}/base"
    path = [
        onnx.helper.make_node("MatMul", [node.input[0], a], [f"{given}/lora_A"], f"{node.name}/lora_A"),
        onnx.helper.make_node("MatMul", [f"{given}/lora_A", b], [f"{given}/lora_B"], f"{node.name}/lora_B"),
        onnx.helper.make_node("Add", [f"{given}/base", f"{given}/lora_B"], [given], f"{node.name}/lora_Add"),
    ]
    for offset, added in enumerate(path, 1):
        graph.node.insert(place + offset, added)
    return size["K"], size["N"]


def is_in_layers(node: onnx.NodeProto) -> bool:
    """Whether a node is a matrix of a decoder's layer."""
    return node.op_type in MATRICES and "/layers." in node.name


def write_adapted(
    source: Path, target: Path, chosen: Callable[[onnx.NodeProto], bool] = is_in_layers
) -> dict[str, tuple[int, int]]:
    """Write a copy of a model with inputs for adapters at the chosen matrices of its decoder.

    Returns the sizes [in, out] of the matrices by the names of their nodes.
    """
    shutil.copytree(source, target)
    file = target / json.loads((target / "genai_config.json").read_text())["model"]["decoder"]["filename"]
    model = onnx.load(str(file), load_external_data=False)
    shapes = {node.name: add_path(model.graph, node) for node in list(model.graph.node) if chosen(node)}
    onnx.save(model, str(file))
    return shapes


def random_weights(
    shapes: Mapping[str, tuple[int, int]], rank: int, strength: float, seed: int
) -> dict[str, NDArray[np.float32]]:
    """An adapter of random weights, for the matrices of some nodes by their sizes [in, out]."""
    chance = np.random.default_rng(seed)
    found = {}
    for node, (rows, columns) in shapes.items():
        a, b = inputs_of(node)
        found[a] = chance.normal(size=(rows, rank)).astype(np.float32) * np.float32(strength / max(1, rank))
        found[b] = chance.normal(size=(rank, columns)).astype(np.float32) * np.float32(strength)
    return found


def save_adapter(file: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    # Here, after the package that switches its telemetry off.
    import onnxruntime

    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({n: onnxruntime.OrtValue.ortvalue_from_numpy(w) for n, w in weights.items()})
    adapter.export_adapter(str(file))
