"""Layers with states of fixed size in a ragged graph: which forms are known, and what they become."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_description import DoesNotFit, LayerState
from genai_server.engine.graph_rewriting.native_attention import COMMITTED, NATIVE, SLOTS, STARTS
from genai_server.engine.graph_rewriting.ragged import StateLayers, make_ragged, state_operators
from genai_server.engine.model.graph_reader import read_decoder_graph
from tests.engine.hybrids import BUILT
from tests.engine.native.operator_session import session_of, value

CHANNELS, WIDTH = 8, 3
INT32 = TensorProto.INT32
PAST = "past.conv"
DECODER = replace(
    read_decoder_graph(BUILT / "lfm2"),
    conv_states=(LayerState(PAST, "present.conv", (WIDTH - 1, CHANNELS), np.float32),),
    recurrent_states=(LayerState("past.state", "present.state", (2, 4, 4), np.float32),),
)
RULES = {"linear": [], "gated": ["decay", ""], "delta": ["", "rate"], "gated_delta": ["decay", "rate"]}


def taps() -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((CHANNELS, 1, WIDTH), np.float32)


def a_graph(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """A graph with the states of both kinds, and the weights of a convolution."""
    shapes: dict[str, list[str | int | None]] = {
        "x": ["tokens"],
        PAST: [1, CHANNELS, WIDTH - 1],
        "past.state": [1, 2, 4, 4],
    }
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    return helper.make_graph(nodes, "states", inputs, [], [numpy_helper.from_array(taps(), "weight")])


def convolution(*, inputs: tuple[str, ...] = ("x", "weight", "", PAST), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        "CausalConvWithState", inputs, ["y", "present.conv"], "conv", domain="com.microsoft", **attributes
    )


def recurrence(*gates: str, past: str = "past.state", **attributes: Any) -> onnx.NodeProto:
    inputs = ["q", "k", "v", past, *gates]
    given: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, **attributes}
    outputs = ["o", "present.state"]
    return helper.make_node("LinearAttention", inputs, outputs, "linear", domain="com.microsoft", **given)


def replaced(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that a node of a graph becomes."""
    return StateLayers(a_graph(node), DECODER).replaced(node)


def given(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(convolution(dilation=2), id="dilated"),
        pytest.param(convolution(ndim=2), id="two dimensions"),
        pytest.param(convolution(activation="gelu"), id="activation"),
        pytest.param(convolution(state_window=4), id="window"),
        pytest.param(convolution(inputs=("x", "computed", "", PAST)), id="weights"),
        pytest.param(convolution(inputs=("x", "weight", "", "past.other")), id="no state"),
        pytest.param(convolution(inputs=("x", "weight", "", "past.state")), id="another state"),
        pytest.param(recurrence(update_rule="other"), id="rule"),
        pytest.param(recurrence("decay", "rate", state_window=4), id="window of linear attention"),
        pytest.param(recurrence(past=PAST), id="state of a convolution"),
    ],
)
def test_another_form_of_a_layer_with_states_is_refused(node: onnx.NodeProto) -> None:
    with pytest.raises(DoesNotFit, match=f"{node.op_type} has a form that the runner does not know"):
        replaced(node)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_its_gates_only(rule: str) -> None:
    (node,) = replaced(recurrence("decay", "rate", update_rule=rule, scale=0.25))
    gates = [name if name in RULES[rule] else "" for name in ("decay", "rate")]
    assert list(node.input) == ["q", "k", "v", f"{NATIVE}past.state", STARTS, SLOTS, COMMITTED, *gates]
    assert list(node.output) == ["o"]
    expected = {"q_num_heads": 2, "kv_num_heads": 2, "scale": 0.25, "delta": int("rate" in gates)}
    assert given(node) == expected


def swap(name: str, made: str) -> onnx.NodeProto:
    return helper.make_node("Transpose", [name], [made], perm=[0, 2, 1])


@pytest.mark.parametrize("is_swapped", [False, True], ids=["channels first", "between transposes"])
@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
def test_a_convolution_of_flat_tokens_gives_what_its_operator_does(is_swapped: bool, activation: str) -> None:
    nodes = [convolution(activation=activation)]
    if is_swapped:
        nodes = [swap("x", "swapped"), convolution(inputs=("swapped", *nodes[0].input[1:]), activation=activation)]
        nodes.append(swap("y", "z"))
    graph = a_graph(*nodes)
    layers = StateLayers(graph, DECODER)
    made = [each for node in nodes for each in layers.replaced(node)]
    output = "z" if is_swapped else "y"
    inputs = [value("x"), value(NATIVE + PAST), *(value(name, INT32) for name in (STARTS, SLOTS, COMMITTED))]
    wanted = helper.make_graph(made, "flat", inputs, [value(output)], graph.initializer)
    tokens = np.random.default_rng(3).standard_normal((5, CHANNELS), np.float32)
    feed = {
        "x": tokens[np.newaxis] if is_swapped else tokens.T[np.newaxis].copy(),
        NATIVE + PAST: np.zeros((1, WIDTH - 1, CHANNELS), np.float32),
        STARTS: np.array([0, 5], np.int32),
        SLOTS: np.array([0], np.int32),
        COMMITTED: np.array([5], np.int32),
    }
    (found,) = session_of(wanted).run([output], feed)
    before = np.concatenate([np.zeros((WIDTH - 1, CHANNELS), np.float32), tokens])
    expected: NDArray[Any] = np.sum([before[tap : tap + 5] * taps()[:, 0, tap] for tap in range(WIDTH)], axis=0)
    if activation != "none":
        expected = expected / (1 + np.exp(-expected))
    np.testing.assert_allclose(found[0] if is_swapped else found[0].T, expected, rtol=1e-5, atol=1e-5)
    # Swaps that would undo each other are left out.
    assert Counter(node.op_type for node in made)["Transpose"] == (1 if is_swapped else 2)
    assert "swapped" not in {name for node in made if node.op_type != "Transpose" for name in node.input}


@pytest.mark.parametrize("name", ["lfm2", "qwen-3.5"])
def test_operators_with_states_alone_read_what_a_pass_gives(name: str) -> None:
    decoder = read_decoder_graph(BUILT / name)
    model = onnx.load(str(decoder.path), load_external_data=False)
    before = Counter(node.op_type for node in model.graph.node)
    make_ragged(model.graph, decoder)
    alone = state_operators(model, decoder)
    states = {NATIVE + state.past for state in (*decoder.conv_states, *decoder.recurrent_states)}
    given = {value.name for value in alone.graph.input}
    assert given >= {STARTS, SLOTS, COMMITTED, *states}
    # A pass gives the rest, besides what it gives without drafts.
    outputs = {value.name for value in model.graph.output}
    assert given - {STARTS, SLOTS, COMMITTED, *states} == outputs - {decoder.logits, decoder.hidden_output}
    operators = Counter(node.op_type for node in alone.graph.node)
    wanted = {"CausalConvWithState": "RaggedConvolution", "LinearAttention": "RaggedLinearAttention"}
    assert operators == {made: before[own] for own, made in wanted.items() if before[own]}
    # Nothing reads their results, and ONNX Runtime keeps only what is an output.
    assert [value.name for value in alone.graph.output] == [node.output[0] for node in alone.graph.node]
