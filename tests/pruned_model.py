"""The demo model as built with prune_lm_head: its graph returns the logits of the last token only."""

import shutil
from pathlib import Path

from onnx import TensorProto, helper

from tests.model_edits import edited_graph
from tests.running_server import DEMO

_HEAD = "/lm_head/MatMul_Q8"


def make_pruned_model(directory: Path) -> None:
    """Copy the demo model, pruned before its head."""
    shutil.copytree(DEMO, directory)
    last, axis = helper.make_tensor("last", TensorProto.INT64, [], [-1]), helper.make_tensor("axis", 7, [1], [1])
    with edited_graph(directory) as graph:
        place, head = next((place, node) for place, node in enumerate(graph.node) if node.name == _HEAD)
        graph.initializer.extend([last, axis])
        graph.node.insert(place, helper.make_node("Gather", [head.input[0], "last"], ["last_state"], axis=1))
        graph.node.insert(place + 1, helper.make_node("Unsqueeze", ["last_state", "axis"], ["last_states"]))
        head.input[0] = "last_states"
        logits = next(output for output in graph.output if output.name == "logits")
        logits.type.tensor_type.shape.dim[1].dim_value = 1
