"""The precision of the products in mixtures of experts."""

import onnx
from onnx import helper

from genai_server.engine.model.output_head import EIGHT_BITS

_EXPERTS, _PRODUCT, _ACCURACY = "QMoE", "MatMulNBits", "accuracy_level"
_INT8_ACTIVATIONS = 4


def match_experts(graph: onnx.GraphProto) -> None:
    """Let experts take activations of 8 bits where all other products with quantized weights do.

    The model builder passes `accuracy_level` on to these only, and leaves the experts at 32 bits. On a CPU with AVX2, a
    step of LFM2-8B-A1B then takes half of the processor's time, for 1 row and for 16.
    """
    levels = {_level(node) for node in graph.node if node.op_type == _PRODUCT}
    levels |= {_INT8_ACTIVATIONS for node in graph.node if node.op_type == EIGHT_BITS}
    if levels != {_INT8_ACTIVATIONS}:
        return
    for node in graph.node:
        if node.op_type == _EXPERTS and _level(node) is None:
            node.attribute.append(helper.make_attribute(_ACCURACY, _INT8_ACTIVATIONS))


def _level(node: onnx.NodeProto) -> int | None:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == _ACCURACY), None)
