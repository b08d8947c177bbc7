"""Make a model that takes LoRA adapters of another one, and two adapters for it, to try them with.

The weights stay as they are. At some of its matrices the graph gets a second path of two small ones, which are inputs:
left out, they are of rank 0, and the model answers as before. `lively` exchanges full stops and exclamation marks at
the last matrix, `dreamy` has random weights in all layers. Neither was trained; the same model gives the same files.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
import onnx
import tokenizers
from _models.environment import REPOSITORY
from numpy.typing import NDArray

DEMO = REPOSITORY / "models" / "demo"
MATRICES = ("MatMul", "MatMulNBits")
IN_LAYERS = ("/o_proj/", "/down_proj/")
LAST = "/lm_head/"
RANK, STRENGTH, SEED = 4, 0.45, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="where the model directory goes; must not exist")
    parser.add_argument("--model", type=Path, default=DEMO, metavar="DIR", help="the model to begin with (the demo's)")
    arguments = parser.parse_args()
    shutil.copytree(arguments.model, arguments.out)
    file = arguments.out / "model.onnx"
    model = onnx.load(str(file), load_external_data=False)
    shapes = {node.name: add_path(model.graph, node) for node in list(model.graph.node) if has_path(node)}
    onnx.save(model, str(file))
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
    exchanged = [tokenizer.get_vocab()[token] for token in (".", "!")]
    original = onnx.load(str(arguments.model / "model.onnx")).graph
    save(arguments.out / "lively.onnx_adapter", exchange(original, *exchanged))
    save(arguments.out / "dreamy.onnx_adapter", randomly(shapes))


def has_path(node: onnx.NodeProto) -> bool:
    return node.op_type in MATRICES and any(part in node.name for part in (*IN_LAYERS, LAST))


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


def exchange(graph: onnx.GraphProto, one: int, other: int) -> dict[str, NDArray[np.float32]]:
    """Rank 1 at the last matrix: what it would give to one token goes to the other."""
    (node,) = [node for node in graph.node if LAST in node.name and node.op_type in MATRICES]
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    size = {attribute.name: attribute.i for attribute in node.attribute}
    if size.get("bits") != 8:
        raise SystemExit(f"{node.name} is not in 8 bits, and nothing else is read here")
    packed, scales = (tensors[name] for name in node.input[1:3])
    rows = (packed[[one, other]].astype(np.float32) - 128) * scales[[one, other], :, np.newaxis]
    difference = (rows[1] - rows[0]).reshape(-1, 1)[: size["K"]]
    towards = np.zeros((1, size["N"]), np.float32)
    towards[0, [one, other]] = 1, -1
    a, b = inputs_of(node.name)
    return {a: difference, b: towards}


def randomly(shapes: dict[str, tuple[int, int]]) -> dict[str, NDArray[np.float32]]:
    chance = np.random.default_rng(SEED)
    found = {}
    for node, (rows, columns) in shapes.items():
        if LAST not in node:
            a, b = inputs_of(node)
            found[a] = chance.normal(size=(rows, RANK)).astype(np.float32) * np.float32(STRENGTH / RANK)
            found[b] = chance.normal(size=(RANK, columns)).astype(np.float32) * np.float32(STRENGTH)
    return found


def save(file: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    # Here, after the package that switches its telemetry off.
    import onnxruntime

    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({n: onnxruntime.OrtValue.ortvalue_from_numpy(w) for n, w in weights.items()})
    adapter.export_adapter(str(file))
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
