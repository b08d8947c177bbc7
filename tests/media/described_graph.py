"""A graph that is only described."""

from pathlib import Path
from typing import Any

from onnx import helper, save


def write_graph(path: Path, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """A graph whose outputs are of a custom operator: no session can load it, so that only its description is read."""
    made = [helper.make_tensor_value_info(name, *about) for name, about in inputs.items()]
    given = [helper.make_tensor_value_info(name, *about) for name, about in outputs.items()]
    node = helper.make_node("Nowhere", list(inputs), list(outputs), domain="nowhere")
    save(helper.make_model(helper.make_graph([node], "graph", made, given), ir_version=10), str(path))
