"""Rewrites layers with recurrent states, which are convolutions and linear attention, for a graph over flat tokens.

The operators RaggedConvolution and RaggedLinearAttention (native/README.md) read the flat tokens of all rows, and write
the state of each row into the row's slot. Draft tokens do not change the states, because they may be rejected. A pass
with drafts also returns what these operators have read, and a session that has only these operators then advances the
states by the accepted tokens (`state_operators`).
"""

from collections import defaultdict
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.native_attention import COMMITTED, NATIVE, SLOTS, STARTS
from genai_server.engine.graph_rewriting.packed_products import DOMAIN

CONVOLUTION, RECURRENCE = "CausalConvWithState", "LinearAttention"
_NATIVE_CONVOLUTION, _NATIVE_RECURRENCE = "RaggedConvolution", "RaggedLinearAttention"
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
_SILU = {b"silu", b"swish"}
# Inputs of a LinearAttention: those of the tokens, the state, and the gates.
_PAST, _DECAY, _RATE = 3, 4, 5
# Which of the gates each rule has.
_RULES = {b"linear": (), b"gated": (_DECAY,), b"delta": (_RATE,), b"gated_delta": (_DECAY, _RATE)}
_MAX_WIDTH = 64
# The inputs of the operators that are tokens.
_OF_CONVOLUTION, _OF_RECURRENCE = (0,), (0, 1, 2, 7, 8)


class StateLayers:
    """Rewrites the layers with recurrent states in a decoder's graph."""

    def __init__(self, graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
        self._graph, self._folder = graph, decoder.path.parent
        self._makers = {output: node for node in graph.node for output in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)
        # Outputs of nodes that are left out.
        self._dropped: set[str] = set()
        self._states = {state.past: state for state in (*decoder.conv_states, *decoder.recurrent_states)}
        self._recurrent = {state.past for state in decoder.recurrent_states}
        # The states of all slots.
        self.inputs = [
            helper.make_tensor_value_info(NATIVE + past, TensorProto.FLOAT, ["slots", *state.shape])
            for past, state in self._states.items()
        ]
        # What the operators read of the flat tokens, [1, T, …].
        self.read: dict[str, None] = {}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that replace a node: the node itself if it has no state, or none if another new operator
        includes it.

        Raises DoesNotFit if an operator with a state has an unknown form.
        """
        if node.op_type == CONVOLUTION:
            return self._convolution(node)
        if node.op_type == RECURRENCE:
            return self._recurrence(node)
        return [] if self._dropped.intersection(node.output) else [node]

    def _convolution(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        tokens, weight, bias, past = [*node.input, "", ""][:4]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        activation = attributes.pop(_ACTIVATION, b"none")
        is_plain = all(value == _PLAIN.get(name) for name, value in attributes.items())
        constants = {value.name: value for value in self._graph.initializer if value.name in (weight, bias)}
        is_known = past in self._states and past not in self._recurrent and activation in {b"none", *_SILU}
        if not is_plain or not is_known or len(constants) < (2 if bias else 1):
            raise DoesNotFit(f"its operator {CONVOLUTION} has a form that the runner does not know")
        by_tap = self._values(constants[weight]).transpose(2, 1, 0)[:, 0]  # [width, channels]
        if len(by_tap) > _MAX_WIDTH:
            raise DoesNotFit(f"its operator {CONVOLUTION} reads more than {_MAX_WIDTH} tokens")
        out, weights = node.output[0], f"{node.output[0]}.weights"
        self._graph.initializer.append(_constant(by_tap, weights))
        if bias:
            self._graph.initializer.append(_constant(self._values(constants[bias]), f"{out}.bias"))
            bias = f"{out}.bias"
        made: list[onnx.NodeProto] = []
        maker = self._makers.get(tokens)
        if maker is not None and _is_swap(maker):
            tokens = maker.input[0]
        else:
            made.append(helper.make_node("Transpose", [tokens], [f"{out}.tokens"], perm=_SWAP))
            tokens = f"{out}.tokens"
        flat = f"{out}.flat"
        if is_swapped := [_is_swap(reader) for reader in self._readers[out]] == [True]:
            flat = self._readers[out][0].output[0]
            self._dropped.add(flat)
        inputs = [tokens, weights, NATIVE + past, STARTS, SLOTS, COMMITTED, bias]
        operator = self._operator(
            helper.make_node(
                _NATIVE_CONVOLUTION,
                inputs if bias else inputs[:-1],
                [flat],
                node.name,
                domain=DOMAIN,
                silu=int(activation in _SILU),
            ),
            _OF_CONVOLUTION,
        )
        made.append(operator)
        if not is_swapped:
            made.append(helper.make_node("Transpose", [flat], [out], perm=_SWAP))
        return made

    def _values(self, constant: TensorProto) -> NDArray[Any]:
        return numpy_helper.to_array(constant, str(self._folder))

    def _recurrence(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        attributes: dict[str, Any] = {"update_rule": b"gated_delta", "state_window": 0, "scale": 0.0}
        attributes |= {a.name: helper.get_attribute_value(a) for a in node.attribute}
        given = [*node.input, *[""] * (_RATE + 1 - len(node.input))]
        gates = _RULES.get(attributes["update_rule"])
        if gates is None or attributes["state_window"] or given[_PAST] not in self._recurrent:
            raise DoesNotFit(f"its operator {RECURRENCE} has a form that the runner does not know")
        optional = [given[index] if index in gates else "" for index in (_DECAY, _RATE)]
        operator = self._operator(
            helper.make_node(
                _NATIVE_RECURRENCE,
                [*given[:_PAST], NATIVE + given[_PAST], STARTS, SLOTS, COMMITTED, *optional],
                node.output[:1],
                node.name,
                domain=DOMAIN,
                q_num_heads=attributes["q_num_heads"],
                kv_num_heads=attributes["kv_num_heads"],
                scale=attributes["scale"],
                delta=int(_RATE in gates),
            ),
            _OF_RECURRENCE,
        )
        return [operator]

    def _operator(self, node: onnx.NodeProto, tokens: tuple[int, ...]) -> onnx.NodeProto:
        """Add the names of those inputs of a new operator that are tokens, at the indexes `tokens`, to `read`. Returns
        the operator.
        """
        self.read |= dict.fromkeys(name for index, name in enumerate(node.input) if name and index in tokens)
        return node


def _constant(values: NDArray[Any], name: str) -> TensorProto:
    """Return values as a constant tensor in 32 bits."""
    return numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)


def _is_swap(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and list(node.attribute[0].ints) == _SWAP


def state_operators(model: onnx.ModelProto, decoder: DecoderGraph) -> onnx.ModelProto:
    """Return a model that has only the operators with recurrent states of a rewritten model.

    Its inputs are the states, STARTS, SLOTS and COMMITTED, and the values that the operators read for each token. A
    pass of the whole model returns these values under the same names.
    """
    nodes = [node for node in model.graph.node if node.op_type in (_NATIVE_CONVOLUTION, _NATIVE_RECURRENCE)]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    read = list(dict.fromkeys(name for node in nodes for name in node.input if name))
    integers = {STARTS, SLOTS, COMMITTED}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT32 if name in integers else TensorProto.FLOAT, None)
        for name in read
        if name not in constants
    ]
    # ONNX Runtime would leave out operators whose results nothing reads.
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes]
    kept = [constants[name] for name in read if name in constants]
    found = helper.make_graph(nodes, "state_operators", inputs, outputs, kept)
    return helper.make_model(found, opset_imports=model.opset_import, ir_version=model.ir_version)
