"""A GroupQueryAttention as the model builder writes it, for tests of what replaces it."""

from typing import Any

import onnx
from onnx import helper

from genai_server.engine.graph_description import ATTENTION


def attention(*more: tuple[int, str], **attributes: Any) -> onnx.NodeProto:
    """A GroupQueryAttention with these inputs, by their places, besides the usual ones."""
    inputs = ["q", "k", "v", "past.k", "past.v", "lengths", "total", "cos", "sin", *[""] * 8]
    for place, name in more:
        inputs[place] = name
    outputs = ["out", "present.k", "present.v"]
    return helper.make_node(
        ATTENTION, inputs, outputs, "a", domain="com.microsoft", num_heads=4, kv_num_heads=2, **attributes
    )
