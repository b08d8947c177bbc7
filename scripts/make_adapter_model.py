"""Make a copy of the demo model that takes LoRA adapters, and two adapters for it, to try them with.

The weights stay as they are. At some of its matrices the graph gets a second path of two small ones, which are inputs:
left out, they are of rank 0, and the model answers as before. `lively` exchanges full stops and exclamation marks at
the last matrix, `dreamy` has random weights in all layers. Neither was trained; the same model gives the same files.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import tokenizers
from _models.adapter_graph import MATRICES, inputs_of, random_weights, save_adapter, write_adapted
from _models.environment import REPOSITORY
from numpy.typing import NDArray

DEMO = REPOSITORY / "models" / "demo"
IN_LAYERS = ("/o_proj/", "/down_proj/")
LAST = "/lm_head/"
RANK, STRENGTH, SEED = 4, 0.45, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="where the model directory goes; must not exist")
    arguments = parser.parse_args()
    shapes = write_adapted(DEMO, arguments.out, has_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
    exchanged = [tokenizer.get_vocab()[token] for token in (".", "!")]
    original = onnx.load(str(DEMO / "model.onnx")).graph
    save_adapter(arguments.out / "lively.onnx_adapter", exchange(original, *exchanged))
    in_layers = {node: size for node, size in shapes.items() if LAST not in node}
    save_adapter(arguments.out / "dreamy.onnx_adapter", random_weights(in_layers, RANK, STRENGTH, SEED))
    print(f"wrote {arguments.out} with lively.onnx_adapter and dreamy.onnx_adapter")


def has_path(node: onnx.NodeProto) -> bool:
    return node.op_type in MATRICES and any(part in node.name for part in (*IN_LAYERS, LAST))


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


if __name__ == "__main__":
    main()
