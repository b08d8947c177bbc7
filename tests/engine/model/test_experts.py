"""The precision of experts' products."""

import onnx
import pytest
from onnx import helper

from genai_server.engine.model.experts import match_experts


def graph(products: list[int | None], experts: int | None) -> onnx.GraphProto:
    nodes = [node("MatMulNBits", level) for level in products] + [node("QMoE", experts)]
    return helper.make_graph(nodes, "graph", [], [])


def node(operator: str, level: int | None) -> onnx.NodeProto:
    found = helper.make_node(operator, ["x"], ["y"])
    if level is not None:
        found.attribute.append(helper.make_attribute("accuracy_level", level))
    return found


@pytest.mark.parametrize(
    ("products", "experts", "expected"),
    [
        ([4, 4], None, 4),
        ([4, 4], 0, 0),
        ([4, 4], 1, 1),
        ([4, 0], None, None),
        ([4, None], None, None),
        ([None], None, None),
        ([], None, None),
    ],
)
def test_experts_have_the_level_of_all_products(
    products: list[int | None], experts: int | None, expected: int | None
) -> None:
    changed = graph(products, experts)
    match_experts(changed)
    assert list(changed.node) == list(graph(products, expected).node)


@pytest.mark.parametrize(("others", "expected"), [([], 4), ([4], 4), ([0], None)])
def test_experts_next_to_8_bit_weights_have_8_bit_activations(others: list[int | None], expected: int | None) -> None:
    changed = graph(others, None)
    changed.node.append(helper.make_node("MatMulIntegerToFloat", ["x"], ["y"]))
    match_experts(changed)
    assert [node for node in changed.node if node.op_type == "QMoE"] == list(graph([], expected).node)
