"""Layers with states of fixed size in a ragged graph (engine/model/ragged.py): convolutions and linear attention.

A convolution reads the flat tokens of all rows in one operator, which takes the rows' ends. It needs a token of each
row. So the states of the rows that have tokens are selected before it, and put between those of idle rows after it.

A linear attention has two groups, as attention has. It takes no lengths: places without a token get a decay and an
update rate of 0, which leave a state bitwise unchanged. So do idle rows.

Both read and write a state in the same memory. Each operator reads all that it needs before it writes, and ONNX Runtime
runs one operator at a time.
"""

from collections.abc import Container, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.model.graph import DecoderGraph, DoesNotFit

CONVOLUTION, RECURRENCE = "CausalConvWithState", "LinearAttention"
# Prefix of the inputs and of the states of convolutions.
STATES = "genai_server.states."
# For convolutions: ROWS int64 [A] has the row of each of the A sequences with tokens, in the order of the flat tokens.
# ENDS int32 [A + 1] has a zero and the end of each of them in the flat tokens. KEPT int64 [rows] has for each row its
# place in the states before the pass, or behind these, that of its new state.
ROWS, ENDS, KEPT = STATES + "rows", STATES + "ends", STATES + "kept"
# For each group of a linear attention: PADDED_STATES int64 [B, S, 2] has the flat position (0, t) of each place, and
# HAS_TOKEN bool [B, S, 1] whether there is a token. A group may have no rows.
PADDED_STATES, HAS_TOKEN = "padded_states", "has_token"
_RAGGED_CONVOLUTION = "VarlenCausalConvWithState"
_FIRST_AXIS, _NOTHING = STATES + "first_axis", STATES + "nothing"
_SWAP = [0, 2, 1]  # of [rows, channels, tokens] and [rows, tokens, channels]
# What a convolution's attributes must be. ONNX Runtime writes all of them into a graph that it has optimized.
_PLAIN = {
    "ndim": 1,
    "dilation": 1,
    "channels_last": 0,
    "input_channels": 0,
    "input_channel_offset": 0,
    "state_channels_last": -1,
    "state_length": 0,
    "state_update_capacity": 0,
    "state_window": 0,
}
_ACTIVATION = "activation"
# Inputs of a LinearAttention.
_TOKENS, _PAST, _GATES = (0, 1, 2), 3, (4, 5)


class StateLayers:
    """The layers with states of a decoder's graph, for the groups with these prefixes.

    `places` ends the names of the inputs that say where a group's flat tokens are.
    """

    def __init__(self, graph: onnx.GraphProto, decoder: DecoderGraph, groups: tuple[str, ...], places: str) -> None:
        self._groups, self._places = groups, places
        self._makers = {output: node for node in graph.node for output in node.output}
        self._convolved = {state.past for state in decoder.conv_states}
        self._recurrent = {state.past for state in decoder.recurrent_states}
        # Values of the ragged graph.
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        if not decoder.has_states:
            return
        graph.initializer.extend(_constants())
        self.inputs += _layout_inputs(groups)
        values = {value.name: value for value in (*graph.input, *graph.output)}
        spans = [(STATES, decoder.conv_states), *((group, decoder.recurrent_states) for group in groups)]
        for prefix, states in spans:
            self.inputs += [_span(values[state.past], prefix) for state in states]
            self.outputs += [_span(values[state.present], prefix) for state in states]

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that a node becomes. Raises DoesNotFit."""
        if node.op_type == CONVOLUTION:
            return _flat_convolution(node, self._convolved, self._makers)
        if node.op_type == RECURRENCE:
            return _split_recurrence(node, self._recurrent, self._groups, self._places)
        return [node]


def _span(value: onnx.ValueInfoProto, prefix: str) -> onnx.ValueInfoProto:
    """The states of a span of rows."""
    found = onnx.ValueInfoProto()
    found.CopyFrom(value)
    found.name = prefix + value.name
    found.type.tensor_type.shape.dim[0].dim_param = prefix + "state_rows"
    return found


def _constants() -> list[TensorProto]:
    """The initializers that the nodes need."""
    return [
        numpy_helper.from_array(np.array([0], np.int64), _FIRST_AXIS),
        numpy_helper.from_array(np.array(0, np.float32), _NOTHING),
    ]


def _layout_inputs(groups: tuple[str, ...]) -> list[onnx.ValueInfoProto]:
    """The graph's inputs that say where the tokens of each row are."""
    found = [
        helper.make_tensor_value_info(ROWS, TensorProto.INT64, ["states"]),
        helper.make_tensor_value_info(ENDS, TensorProto.INT32, ["ends"]),
        helper.make_tensor_value_info(KEPT, TensorProto.INT64, [STATES + "state_rows"]),
    ]
    for group in groups:
        places: list[str | int] = [group + "state_rows", group + "state_width"]
        found += [
            helper.make_tensor_value_info(group + PADDED_STATES, TensorProto.INT64, [*places, 2]),
            helper.make_tensor_value_info(group + HAS_TOKEN, TensorProto.BOOL, [*places, 1]),
        ]
    return found


def _flat_convolution(
    node: onnx.NodeProto, states: Container[str], makers: Mapping[str, onnx.NodeProto]
) -> list[onnx.NodeProto]:
    """The nodes that replace a convolution. `states` are the names of known states. Raises DoesNotFit."""
    tokens, weight, bias, past = [*node.input, "", ""][:4]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    activation = attributes.pop(_ACTIVATION, b"none")
    if any(value != _PLAIN.get(name) for name, value in attributes.items()) or past not in states:
        raise DoesNotFit(f"its operator {CONVOLUTION} has a form that the runner does not know")
    out, present = node.output[:2]
    made: list[onnx.NodeProto] = []
    maker = makers.get(tokens)
    if maker is not None and maker.op_type == "Transpose" and list(maker.attribute[0].ints) == _SWAP:
        tokens = maker.input[0]
    else:
        made.append(helper.make_node("Transpose", [tokens], [f"{out}.tokens"], perm=_SWAP))
        tokens = f"{out}.tokens"
    inputs = [f"{out}.flat", weight, ENDS, bias, f"{out}.past"]
    return [
        *made,
        helper.make_node("Squeeze", [tokens, _FIRST_AXIS], [f"{out}.flat"]),
        helper.make_node("Gather", [STATES + past, ROWS], [f"{out}.past"]),
        helper.make_node(
            _RAGGED_CONVOLUTION,
            inputs,
            [f"{out}.flat_out", f"{out}.new"],
            node.name,
            domain="com.microsoft",
            activation=activation,
        ),
        helper.make_node("Concat", [STATES + past, f"{out}.new"], [f"{out}.states"], axis=0),
        helper.make_node("Gather", [f"{out}.states", KEPT], [STATES + present]),
        helper.make_node("Unsqueeze", [f"{out}.flat_out", _FIRST_AXIS], [f"{out}.tokens_out"]),
        helper.make_node("Transpose", [f"{out}.tokens_out"], [out], perm=_SWAP),
    ]


def _split_recurrence(
    node: onnx.NodeProto, states: Container[str], groups: tuple[str, ...], places: str
) -> list[onnx.NodeProto]:
    """The nodes that replace a linear attention: one for each group. `places` ends the names of the inputs which say
    where a group's tokens are. Raises DoesNotFit.
    """
    attributes = {"update_rule": b"gated_delta", "state_window": 0}
    attributes |= {a.name: helper.get_attribute_value(a) for a in node.attribute}
    is_known = attributes["update_rule"] == b"gated_delta" and attributes["state_window"] == 0
    if not is_known or len(node.input) <= max(_GATES) or node.input[_PAST] not in states:
        raise DoesNotFit(f"its operator {RECURRENCE} has a form that the runner does not know")
    made, parts = [], []
    out, present = node.output
    for group in groups:
        inputs = list(node.input)
        for position in (*_TOKENS, *_GATES):
            padded = f"{group}{out}.{position}"
            made.append(helper.make_node("GatherND", [inputs[position], group + PADDED_STATES], [padded]))
            inputs[position] = padded
            if position in _GATES:
                made.append(helper.make_node("Where", [group + HAS_TOKEN, padded, _NOTHING], [f"{padded}.gate"]))
                inputs[position] = f"{padded}.gate"
        inputs[_PAST] = group + node.input[_PAST]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = group + node.name
        del copy.input[:], copy.output[:]
        copy.input.extend(inputs)
        copy.output.extend([group + out, group + present])
        parts.append(f"{group}{out}.flat")
        made += [copy, helper.make_node("GatherND", [group + out, group + places], parts[-1:])]
    return [*made, helper.make_node("Concat", parts, [out], axis=1)]
