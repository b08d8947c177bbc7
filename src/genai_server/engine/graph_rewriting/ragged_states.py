"""Layers with states of fixed size in a ragged graph: convolutions and linear attention.

A convolution of width K reads the flat tokens of all rows. Each of its K taps but the last, which reads the token
itself, gathers an input for every token: of an earlier token, or of the row's state, which has the last K - 1 inputs
before. ONNX Runtime 1.32 has an operator for all of this, VarlenCausalConvWithState. It takes 12 times as long for rows
of one token, and longer for prompts as well.

A linear attention has two groups, as attention has. It takes no lengths: places without a token get a decay and an
update rate of 0, which leave a state bitwise unchanged. So do idle rows.

Both read and write a state in the same memory. All that is needed of a state is read before it is written, and ONNX
Runtime runs one operator at a time. A pass with drafts leaves the states as they are: it gives more inputs of the
convolutions than a state has, and what the linear attentions of the narrow group have read. From these, the states
behind the accepted tokens are made (`recurrences`).
"""

from collections import defaultdict
from collections.abc import Container
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.groups import GROUPS, NARROW, in_group, split

CONVOLUTION, RECURRENCE = "CausalConvWithState", "LinearAttention"
# Prefix of the inputs and of the states of convolutions.
STATES = "genai_server.states."
# For convolutions, places in the states of all rows with the flat tokens behind them: TAPS int64 [K, T] has those of
# each token's inputs, KEPT int64 [rows, K - 1 + D] those of each row's new state, behind D inputs more.
TAPS, KEPT = STATES + "taps", STATES + "kept"
# For each group of a linear attention: PADDED_STATES int64 [B, S, 2] has the flat position (0, t) of each place, and
# HAS_TOKEN bool [B, S, 1] whether there is a token. A group may have no rows.
PADDED_STATES, HAS_TOKEN = "padded_states", "has_token"
_NOTHING = STATES + "nothing"
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
# The activations x / (1 + exp(-x)), which a QuickGelu gives. Half of the values differ in the last bit from the
# builder's operator.
_SILU = {b"silu", b"swish"}
_KEPT_WIDTH = STATES + "kept_width"
# Inputs of a LinearAttention.
_TOKENS, _PAST, _GATES = (0, 1, 2), 3, (4, 5)


def padded_inputs(group: str, past: str) -> dict[int, str]:
    """What a group's linear attention with this state reads, by the position of its input: values [B, S, channels]."""
    return {position: f"{group}{past}.{position}" for position in (*_TOKENS, *_GATES)}


class StateLayers:
    """The layers with states of a decoder's graph."""

    def __init__(self, graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
        self._graph, self._folder = graph, decoder.path.parent
        self._makers = {output: node for node in graph.node for output in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)
        # Outputs of nodes that are left out.
        self._dropped: set[str] = set()
        self._convolutions = {state.past: state for state in decoder.conv_states}
        self._recurrent = {state.past for state in decoder.recurrent_states}
        # Values of the ragged graph.
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        if not decoder.has_states:
            return
        graph.initializer.extend(_constants(decoder.conv_width))
        for number in range(decoder.conv_width - 1):
            graph.node.insert(number, helper.make_node("Gather", [TAPS, _tap(number)], [_places(number)]))
        self.inputs += _layout_inputs(decoder.conv_width)
        kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        for prefix, states in [(STATES, decoder.conv_states), *((group, decoder.recurrent_states) for group in GROUPS)]:
            for state in states:
                shape: list[str | int] = [prefix + "state_rows", *state.shape]
                kind = kinds[state.past]
                self.inputs.append(helper.make_tensor_value_info(prefix + state.past, kind, shape))
                if prefix == STATES:
                    shape[1] = _KEPT_WIDTH
                self.outputs.append(helper.make_tensor_value_info(prefix + state.present, kind, shape))
        for state in decoder.recurrent_states:
            # ONNX Runtime finds their types.
            self.outputs += [onnx.ValueInfoProto(name=name) for name in padded_inputs(NARROW, state.past).values()]

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that a node becomes. Raises DoesNotFit."""
        if node.op_type == CONVOLUTION:
            return self._flat_convolution(node)
        if node.op_type == RECURRENCE:
            return _split_recurrence(node, self._recurrent)
        return [] if self._dropped.intersection(node.output) else [node]

    def _flat_convolution(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that replace a convolution of channels. Raises DoesNotFit.

        The products are added to the bias in the order of the tokens, as the builder's operator does.
        """
        tokens, weight, bias, past = [*node.input, "", ""][:4]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        activation = attributes.pop(_ACTIVATION, b"none")
        is_plain = all(value == _PLAIN.get(name) for name, value in attributes.items())
        weights = next((value for value in self._graph.initializer if value.name == weight), None)
        if not is_plain or past not in self._convolutions or activation not in {b"none", *_SILU} or weights is None:
            raise DoesNotFit(f"its operator {CONVOLUTION} has a form that the runner does not know")
        out, present = node.output[:2]
        of_taps = numpy_helper.to_array(weights, str(self._folder)).transpose(2, 1, 0)  # [K, 1, channels]
        made: list[onnx.NodeProto] = []

        def make(operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
            made.append(helper.make_node(operator, inputs, [name], **attributes))
            return name

        maker = self._makers.get(tokens)
        if maker is not None and _is_swap(maker):
            tokens = maker.input[0]
        else:
            tokens = make("Transpose", [tokens], f"{out}.tokens", perm=_SWAP)
        flat = f"{out}.flat_shape"
        self._add(flat, np.array([-1, of_taps.shape[2]], np.int64))
        states = make("Reshape", [STATES + past, flat], f"{out}.past")
        read = make("Concat", [states, make("Reshape", [tokens, flat], f"{out}.flat_tokens")], f"{out}.read", axis=0)
        make("Gather", [read, KEPT], STATES + present)
        sums = bias
        for number, of_tap in enumerate(of_taps):
            is_last = number == len(of_taps) - 1
            inputs = tokens if is_last else make("Gather", [read, _places(number)], f"{out}.inputs.{number}")
            self._add(f"{out}.weights.{number}", of_tap)
            product = make("Mul", [inputs, f"{out}.weights.{number}"], f"{out}.product.{number}")
            sums = make("Add", [sums, product], f"{out}.sum.{number}") if sums else product
        if activation in _SILU:
            sums = make("QuickGelu", [sums], f"{out}.activated", domain="com.microsoft", alpha=1.0)
        if [_is_swap(reader) for reader in self._readers[out]] == [True]:
            made[-1].output[0] = self._readers[out][0].output[0]
            self._dropped.add(made[-1].output[0])
        else:
            make("Transpose", [sums], out, perm=_SWAP)
        return made

    def _add(self, name: str, values: NDArray[Any]) -> None:
        """Add a constant to the graph."""
        self._graph.initializer.append(numpy_helper.from_array(values, name))


def _constants(conv_width: int) -> list[TensorProto]:
    """The initializers that the nodes need."""
    values: dict[str, NDArray[Any]] = {
        _NOTHING: np.array(0, np.float32),
        **{_tap(number): np.array(number, np.int64) for number in range(conv_width - 1)},
    }
    return [numpy_helper.from_array(value, name) for name, value in values.items()]


def _layout_inputs(conv_width: int) -> list[onnx.ValueInfoProto]:
    """The graph's inputs that say where the tokens of each row are."""
    found = [
        helper.make_tensor_value_info(TAPS, TensorProto.INT64, [conv_width, "flat"]),
        helper.make_tensor_value_info(KEPT, TensorProto.INT64, [STATES + "state_rows", _KEPT_WIDTH]),
    ]
    for group in GROUPS:
        places: list[str | int] = [group + "state_rows", group + "state_width"]
        found += [
            helper.make_tensor_value_info(group + PADDED_STATES, TensorProto.INT64, [*places, 2]),
            helper.make_tensor_value_info(group + HAS_TOKEN, TensorProto.BOOL, [*places, 1]),
        ]
    return found


def _is_swap(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and list(node.attribute[0].ints) == _SWAP


def _places(number: int) -> str:
    """The inputs of a tap for all tokens."""
    return f"{STATES}places.{number}"


def _tap(number: int) -> str:
    """The initializer with the number of a tap."""
    return f"{STATES}tap.{number}"


def _split_recurrence(node: onnx.NodeProto, states: Container[str]) -> list[onnx.NodeProto]:
    """The nodes that replace a linear attention: one for each group. Raises DoesNotFit."""
    attributes = {"update_rule": b"gated_delta", "state_window": 0}
    attributes |= {a.name: helper.get_attribute_value(a) for a in node.attribute}
    is_known = attributes["update_rule"] == b"gated_delta" and attributes["state_window"] == 0
    if not is_known or len(node.input) <= max(_GATES) or node.input[_PAST] not in states:
        raise DoesNotFit(f"its operator {RECURRENCE} has a form that the runner does not know")

    def inputs(group: str, made: list[onnx.NodeProto]) -> list[str]:
        for position, name in padded_inputs(group, node.input[_PAST]).items():
            padded = f"{name}.all" if position in _GATES else name
            made.append(helper.make_node("GatherND", [node.input[position], group + PADDED_STATES], [padded]))
            if position in _GATES:
                made.append(helper.make_node("Where", [group + HAS_TOKEN, padded, _NOTHING], [name]))
        return _recurrence_inputs(node, group)

    return split(node, inputs)


def _recurrence_inputs(node: onnx.NodeProto, group: str) -> list[str]:
    """The padded inputs and the states that a group's linear attention reads."""
    past = node.input[_PAST]
    return [name for _, name in sorted((padded_inputs(group, past) | {_PAST: group + past}).items())]


def recurrences(model: onnx.ModelProto, decoder: DecoderGraph) -> onnx.ModelProto:
    """The linear attentions of a decoder's model alone, with the names that they have in the narrow group."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    attentions = [node for node in model.graph.node if node.op_type == RECURRENCE]
    nodes = [in_group(node, NARROW, _recurrence_inputs(node, NARROW)) for node in attentions]
    inputs, outputs = [], []
    for state in decoder.recurrent_states:
        kind, (rows, width) = kinds[state.past], (NARROW + "state_rows", NARROW + "state_width")
        inputs += [
            helper.make_tensor_value_info(name, kind, [rows, width, None])
            for name in padded_inputs(NARROW, state.past).values()
        ]
        inputs.append(helper.make_tensor_value_info(NARROW + state.past, kind, [rows, *state.shape]))
        outputs.append(helper.make_tensor_value_info(NARROW + state.present, kind, [rows, *state.shape]))
    found = helper.make_graph(nodes, "recurrences", inputs, outputs)
    return helper.make_model(found, opset_imports=model.opset_import, ir_version=model.ir_version)


def conv_inputs(
    rows: NDArray[np.int64], num_rows: int, ends: list[int], num_tokens: int, width: int, num_more: int
) -> dict[str, NDArray[Any]]:
    """The inputs TAPS and KEPT of a pass, which gives `num_more` inputs more than a state has.

    `rows` have tokens; `ends` has a zero and the end of each one's flat tokens.
    """
    kept_width = width - 1  # a state has the inputs before a row's tokens
    lengths = np.diff(ends)
    starts = num_rows * kept_width + np.array(ends[:-1])  # behind the states of all rows

    def places(row: NDArray[np.int64], start: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the inputs of rows are, from the state's first one on."""
        return np.where(index < kept_width, row * kept_width + index, start + index - kept_width)

    row, start = np.repeat(rows, lengths), np.repeat(starts, lengths)
    index = start[0] + np.arange(len(row)) - start
    taps = np.zeros((width, num_tokens), np.int64)  # tokens that fill groups up read anything
    taps[:, : len(row)] = places(row, start, index + np.arange(width)[:, np.newaxis])
    last = np.maximum(0, np.arange(-num_more, kept_width))  # of rows with fewer inputs, the first are not read
    kept = np.arange(num_rows)[:, np.newaxis] * kept_width + last
    index = np.maximum(0, lengths[:, np.newaxis] + np.arange(-num_more, kept_width))
    kept[rows] = places(rows[:, np.newaxis], starts[:, np.newaxis], index)
    return {TAPS: taps, KEPT: kept}
