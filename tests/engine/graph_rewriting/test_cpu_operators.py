"""Experts' products have the precision of the others; norms with a gate are the same, computed otherwise."""

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.cpu_operators import use_fast_operators


def node(operator: str, level: int | None) -> onnx.NodeProto:
    attributes: dict[str, Any] = {} if level is None else {"accuracy_level": level}
    return helper.make_node(operator, ["x"], ["y"], **attributes)


def graph(products: list[int | None], experts: int | None) -> onnx.GraphProto:
    nodes = [node("MatMulNBits", level) for level in products] + [node("QMoE", experts)]
    return helper.make_graph(nodes, "graph", [], [])


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
    use_fast_operators(changed)
    assert list(changed.node) == list(graph(products, expected).node)


CHANNELS, GROUP = 12, 4
SHAPE: list[str | int | None] = ["rows", "tokens", CHANNELS]


def gated_norms(*attributes: dict[str, Any]) -> onnx.ModelProto:
    """Norms with a gate behind one another."""
    values = [f"value.{number}" for number in range(len(attributes) + 1)]
    nodes = [
        helper.make_node("GatedRMSNorm", [one, "weight", "gate"], [other], domain="com.microsoft", **given)
        for (one, other), given in zip(pairwise(values), attributes, strict=True)
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in (values[0], "gate")]
    outputs = [helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, SHAPE)]
    weight = numpy_helper.from_array(np.linspace(0.5, 2, GROUP, dtype=np.float32), "weight")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    found = helper.make_graph(nodes, "norms", inputs, outputs, [weight])
    return helper.make_model(found, ir_version=10, opset_imports=opsets)


def run(model: onnx.ModelProto) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given: dict[str, Any] = {
        value.name: rng.standard_normal((2, 5, CHANNELS)).astype(np.float32) for value in session.get_inputs()
    }
    return np.asarray(session.run(None, given)[0])


@pytest.mark.parametrize(
    "attributes",
    [
        [{}],
        [{"activation": "swish", "epsilon": 0.1}],
        [{"activation": "sigmoid"}],
        [{"activation": "silu"}, {"activation": "sigmoid"}],
    ],
)
def test_split_norms_give_the_same_values(attributes: list[dict[str, Any]]) -> None:
    model = gated_norms(*attributes)
    expected = run(model)
    use_fast_operators(model.graph)
    assert "GatedRMSNorm" not in {node.op_type for node in model.graph.node}
    np.testing.assert_allclose(run(model), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_in_16_bits", [True, False], ids=["in 16 bits", "changed before"])
def test_another_graph_stays_as_it_is(is_in_16_bits: bool) -> None:
    model = gated_norms({})
    if is_in_16_bits:
        model.graph.initializer[0].data_type = TensorProto.FLOAT16
    else:
        use_fast_operators(model.graph)
    before = model.SerializeToString()
    use_fast_operators(model.graph)
    assert model.SerializeToString() == before
