"""Rewrites a decoder's graph so that one pass reads any number of tokens of each of several rows, a ragged batch
(`make_ragged`), and returns only the logits that are needed (`read_last`, `offer_best`).

A row is a sequence in the pass. The tokens of all rows are concatenated to one flat row [1, tokens], so each weight
matrix is read once for all of them. Only attention, and layers with recurrent states, have to distinguish the rows. On
CPUs they become operators of genai-server-native, whose inputs say where each row's tokens begin and which KV cache
slot the row has (native_attention.py, lora.py). On a device with memory of its own, paged attention replaces attention
(paged_attention.py).

The output head computes logits from the hidden states of the last layer. In a small model with a large vocabulary, it
has a third of the weights, and of a prompt only the logits after its last token are needed. Therefore an input of the
rewritten graph says for which positions logits are computed. If logits are in a device's memory, most answers need only
the highest logit, or the `top_k` highest. Therefore such a graph has further outputs with the highest logits, their
tokens, and the probability of the best token.

Layers with recurrent states are convolutions and linear attention. The operators RaggedConvolution and
RaggedLinearAttention (native/README.md) read the flat tokens of all rows, and write the state of each row into the
row's slot. Draft tokens do not change the states, because they may be rejected. A pass with drafts also returns the
inputs of these operators. A second, small ONNX Runtime session, whose graph has only these operators, then advances the
states by the accepted tokens (`state_operators`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_description import ATTENTION, DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.cross_attention import CROSS_ATTENTION
from genai_server.engine.graph_rewriting.lora import stack_ranks
from genai_server.engine.graph_rewriting.native_attention import (
    COMMITTED,
    NATIVE,
    SLOTS,
    STARTS,
    cache,
    native_inputs,
    to_native,
    to_native_cross,
)
from genai_server.engine.graph_rewriting.onnx_graph import remove_unused_nodes, replace
from genai_server.engine.graph_rewriting.packed_products import DOMAIN
from genai_server.engine.graph_rewriting.paged_attention import paged_inputs, pool, to_paged
from genai_server.engine.scores import NUM_BEST

LAST_POSITIONS = "genai_server.last_positions"
_READ_STATES = "genai_server.read_states"
_PRODUCTS = {"MatMul", "MatMulNBits", "PackedMatMul"}
# Operators that the model builder puts between the product and the logits: casts, scales and Gemma's soft cap.
_ELEMENTWISE = {"Cast", "Div", "Mul", "Tanh"}
# Outputs for the NUM_BEST best tokens of each position: logits, float32 [rows, positions, NUM_BEST], and token ids,
# int64 of the same shape. The highest come first; of equal ones, the lowest token first (ONNX's operator TopK).
BEST_LOGITS, BEST_TOKENS = "genai_server.best_logits", "genai_server.best_tokens"
# The output SHARES, float32 [rows, positions, 1], has the best token's share of softmax(scale · logits). The input
# SCALES, float32 [positions, 1], has the scale of each position, such as 1 / temperature.
SCALES, SHARES = "genai_server.scales", "genai_server.shares"
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
_value = helper.make_tensor_value_info
# int64 [K]: the flat positions whose logits are computed.
WANTED = "genai_server.wanted"
# int64 [1, T]: where each flat token's cosines and sines are, of a graph with other ones for long rows
# (`DecoderGraph.switches_at`), which lie behind those for short ones.
ROPE_POSITIONS = "genai_server.rope_places"
_STATES = "genai_server.wanted_states"
# Ends the names of values in 16 bits.
_HALF = ".half"
# Inputs of a GroupQueryAttention.
_ROPE, _POSITIONS = slice(7, 9), 9
_PRESENT = slice(1, 3)
# Inputs of the type of the queries: these, keys, values, cosines, sines, a sink for each head, and norms.
_FLOATS = (0, 1, 2, 7, 8, 11, 14, 15)


@dataclass(frozen=True)
class Head:
    """The output head of a graph, the nodes that compute logits from hidden states [rows, positions, hidden_size], as
    `find_head` returns it. With it, a graph can be changed to compute fewer logits.

    `states` is the name of the hidden states, and `reader` the node that multiplies them with the head's weights.
    """

    states: str
    # The product that reads the states. Other nodes may read them, too.
    reader: onnx.NodeProto

    def insert_selection(self, graph: onnx.GraphProto, selection: onnx.NodeProto) -> None:
        """Insert the node `selection` into `graph`, in place, between the hidden states and the head's matrix product,
        which then computes logits only of the hidden states that the node selects.

        Other nodes that read the hidden states are not changed.
        """
        first_reader = next(index for index, node in enumerate(graph.node) if self.states in node.input)
        for position, name in enumerate(self.reader.input):
            if name == self.states:
                self.reader.input[position] = selection.output[0]
        graph.node.insert(first_reader, selection)


def find_head(graph: onnx.GraphProto, logits: str) -> Head | None:
    """Return the output head of a graph, which computes the output with the name `logits` from hidden states.

    Returns None if the graph has no such head, or if other nodes also read a value between the head's matrix product
    and the logits.
    """
    makers: dict[str, onnx.NodeProto] = {output: node for node in graph.node for output in node.output}
    read_names = [name for node in graph.node for name in node.input] + [value.name for value in graph.output]
    node = makers.get(logits)
    while node is not None and node.op_type in _ELEMENTWISE:
        node = makers.get(node.input[0])
        if node is not None and read_names.count(node.output[0]) > 1:
            return None
    if node is None or node.op_type not in _PRODUCTS or node.input[0] not in makers:
        return None
    return Head(node.input[0], node)


def read_last(graph: onnx.GraphProto, logits: str) -> bool:
    """Change a graph, in place, so that its output `logits` has only one position of each row, [rows, 1, vocab_size].
    The output head then computes less.

    The new input LAST_POSITIONS, int64 [rows, 1, 2], has for each row its number and the index of this position.
    Returns whether the graph was changed; it is not if it has no output head that can be changed.
    """
    head = find_head(graph, logits)
    if head is None:
        return False
    graph.input.append(onnx.helper.make_tensor_value_info(LAST_POSITIONS, onnx.TensorProto.INT64, ["rows", 1, 2]))
    head.insert_selection(graph, onnx.helper.make_node("GatherND", [head.states, LAST_POSITIONS], [_READ_STATES]))
    return True


def offer_best(graph: onnx.GraphProto, logits: str, excluded: int | None = None) -> None:
    """Add outputs to a graph, in place, with the NUM_BEST highest logits of each position, so that a device need not
    copy all logits of the output `logits` to the host.

    BEST_LOGITS and BEST_TOKENS are [rows, positions, NUM_BEST], the highest logit first. SHARES, [rows, positions, 1],
    is the probability of the best token: the softmax of the logits multiplied by the new input SCALES, [positions, 1].
    The token `excluded` is never among the best, unless it is None.
    """
    floats, ints = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64

    def constant(kind: int, *values: float) -> str:
        name = f"{BEST_LOGITS}.constant{len(graph.initializer)}"
        graph.initializer.append(onnx.helper.make_tensor(name, kind, [len(values)], values))
        return name

    def add(operator: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        outputs = outputs or [f"{BEST_LOGITS}.{len(graph.node)}"]
        graph.node.append(onnx.helper.make_node(operator, inputs, outputs, **attributes))
        return outputs[0]

    as_floats, first = add("Cast", logits, to=floats), constant(ints, 0)
    if excluded is not None:
        added = constant(floats, 0.0, -math.inf)
        mask = add("OneHot", constant(ints, excluded), add("Shape", logits, start=-1), added)
        as_floats = add("Add", as_floats, mask)
    add("TopK", as_floats, constant(ints, NUM_BEST), outputs=[BEST_LOGITS, BEST_TOKENS])
    # The difference is scaled, because low temperatures would magnify the rounding of the logits.
    below = add("Sub", as_floats, add("Gather", BEST_LOGITS, first, axis=2))
    shares = add("Softmax", add("Mul", below, SCALES), axis=-1)
    add("GatherElements", shares, add("Gather", BEST_TOKENS, first, axis=2), outputs=[SHARES], axis=2)
    describe = onnx.helper.make_tensor_value_info
    graph.input.append(describe(SCALES, floats, ["positions", 1]))
    for name, kind, number in ((BEST_LOGITS, floats, NUM_BEST), (BEST_TOKENS, ints, NUM_BEST), (SHARES, floats, 1)):
        graph.output.append(describe(name, kind, ["rows", "positions", number]))


class StateLayers:
    """Rewrites the layers with recurrent states (convolutions and linear attention) in a decoder's graph, so that they
    read tokens of many rows. `make_ragged` creates it for a graph on a CPU.

    `inputs` describes the new inputs of the graph, the states of all slots. `read` has the names of the values that the
    new operators read for each token.
    """

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
        """Return the nodes that take the place of a node: operators of genai-server-native for an operator with
        recurrent states, none if one of these includes the node, and otherwise the node itself.

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
        new_nodes: list[onnx.NodeProto] = []
        maker = self._makers.get(tokens)
        if maker is not None and _is_swap(maker):
            tokens = maker.input[0]
        else:
            new_nodes.append(helper.make_node("Transpose", [tokens], [f"{out}.tokens"], perm=_SWAP))
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
        new_nodes.append(operator)
        if not is_swapped:
            new_nodes.append(helper.make_node("Transpose", [flat], [out], perm=_SWAP))
        return new_nodes

    def _values(self, constant: TensorProto) -> NDArray[Any]:
        return numpy_helper.to_array(constant, str(self._folder))

    def _recurrence(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        attributes: dict[str, Any] = {"update_rule": b"gated_delta", "state_window": 0, "scale": 0.0}
        attributes |= {a.name: helper.get_attribute_value(a) for a in node.attribute}
        old_inputs = [*node.input, *[""] * (_RATE + 1 - len(node.input))]
        gates = _RULES.get(attributes["update_rule"])
        if gates is None or attributes["state_window"] or old_inputs[_PAST] not in self._recurrent:
            raise DoesNotFit(f"its operator {RECURRENCE} has a form that the runner does not know")
        optional = [old_inputs[index] if index in gates else "" for index in (_DECAY, _RATE)]
        operator = self._operator(
            helper.make_node(
                _NATIVE_RECURRENCE,
                [*old_inputs[:_PAST], NATIVE + old_inputs[_PAST], STARTS, SLOTS, COMMITTED, *optional],
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
        """Record which values for each token a new operator reads: the names of its inputs at the indexes `tokens` are
        added to `read`. Returns the operator `node`.
        """
        self.read |= dict.fromkeys(name for index, name in enumerate(node.input) if name and index in tokens)
        return node


def _constant(values: NDArray[Any], name: str) -> TensorProto:
    """Return an initializer (a constant tensor of a graph) with the given name and the values as 32-bit floats."""
    return numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)


def _is_swap(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and list(node.attribute[0].ints) == _SWAP


def state_operators(model: onnx.ModelProto, decoder: DecoderGraph) -> onnx.ModelProto:
    """Return a new model that has only the operators with recurrent states of `model`, a model that `make_ragged` has
    rewritten. It advances the states by accepted draft tokens.

    Its inputs are the states, STARTS, SLOTS and COMMITTED, which describe the rows, and the values that the operators
    read for each token. A pass of the whole model returns these values under the same names.
    """
    nodes = [node for node in model.graph.node if node.op_type in (_NATIVE_CONVOLUTION, _NATIVE_RECURRENCE)]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    input_names = list(dict.fromkeys(name for node in nodes for name in node.input if name))
    integers = {STARTS, SLOTS, COMMITTED}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT32 if name in integers else TensorProto.FLOAT, None)
        for name in input_names
        if name not in constants
    ]
    # ONNX Runtime would leave out operators whose results nothing reads.
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes]
    initializers = [constants[name] for name in input_names if name in constants]
    graph = helper.make_graph(nodes, "state_operators", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def make_ragged(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Rewrite a decoder's graph, in place, so that one pass reads the concatenated tokens of many rows (sequences). The
    KV cache gets the data type that `decoder`, the description of the graph, says.

    Raises DoesNotFit if that is impossible; the graph is then partly changed and must not be used.
    """
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    cache_type = helper.np_dtype_to_tensor_dtype(np.dtype(decoder.cache_type))
    graph_type = inputs[decoder.past_names[0]].type.tensor_type.elem_type
    _choose_positions(graph, decoder)
    _join_ropes(graph, decoder)
    new_outputs = [outputs[name] for name in (decoder.logits, decoder.hidden_output) if name]
    new_inputs = [
        _value(WANTED, TensorProto.INT64, ["wanted"]),
        _value(ROPE_POSITIONS, TensorProto.INT64, [1, "tokens"]),
    ]
    if decoder.block_tokens:
        new_inputs += paged_inputs()
        nodes = _paged_nodes(graph, halves=graph_type != cache_type)
        new_inputs += [
            pool(inputs[name], cache_type, decoder.num_kv_heads, decoder.head_size) for name in decoder.past_names
        ]
        new_outputs += [
            pool(outputs[name], cache_type, decoder.num_kv_heads, decoder.head_size) for name in decoder.present_names
        ]
    else:
        stack_ranks(graph, decoder.low_rank_paths)
        if graph_type != TensorProto.FLOAT:
            raise DoesNotFit("it computes in 16 bits")
        if decoder.hidden_input:  # the model gives its states in 32 bits, whatever its files have
            inputs[decoder.hidden_input].type.tensor_type.elem_type = TensorProto.FLOAT
        states = StateLayers(graph, decoder)
        nodes = _native_nodes(graph, decoder, states)
        new_inputs += [
            *native_inputs(),
            *states.inputs,
            *_all_slots(inputs[state.past] for state in decoder.cross_states),
        ]
        new_inputs += [cache(inputs[name], cache_type, decoder) for name in decoder.past_names]
        new_outputs += [onnx.ValueInfoProto(name=name) for name in states.read]  # ONNX Runtime finds their types
    replace(graph.node, nodes)
    replace(graph.value_info, [])
    replace(graph.output, new_outputs)
    remove_unused_nodes(graph)
    read_names = {name for node in graph.node for name in node.input}
    if decoder.attention_mask and decoder.attention_mask in read_names:
        raise DoesNotFit("its graph reads the attention mask outside of attention")
    replace(graph.input, [value for value in [*graph.input, *new_inputs] if value.name in read_names])


def _paged_nodes(graph: onnx.GraphProto, *, halves: bool) -> list[onnx.NodeProto]:
    """Return the nodes of a graph, with ONNX Runtime's PagedAttention for GPUs in place of GroupQueryAttention.

    With `halves`, a graph of 32 bits computes attention in 16 bits: its inputs are cast to 16 bits, and its result is
    cast to 32 bits. Raises DoesNotFit if PagedAttention cannot compute the same.
    """
    nodes: list[onnx.NodeProto] = []
    casts: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != ATTENTION:
            nodes.append(node)
            continue
        half = node.output[0]
        nodes += _cast_to_half(node, casts) if halves else []
        nodes += to_paged(node)
        if halves:
            nodes.append(helper.make_node("Cast", [f"{half}{_HALF}"], [half], to=TensorProto.FLOAT))
    return nodes


def _native_nodes(graph: onnx.GraphProto, decoder: DecoderGraph, states: StateLayers) -> list[onnx.NodeProto]:
    """Return the nodes of a graph, with genai-server-native's operators for CPUs in place of attention and of layers
    with recurrent states, which `states` rewrites. Raises DoesNotFit if they cannot compute the same.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == ATTENTION:
            nodes.append(to_native(node, decoder))
        elif node.op_type == CROSS_ATTENTION:
            nodes.append(to_native_cross(node, decoder))
        else:
            nodes += states.replaced(node)
    return nodes


def _all_slots(values: Iterable[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
    """Return descriptions of graph inputs for the encoded audio of all KV cache slots, [slots, heads, frames, size].
    `values` are the graph's original inputs for the audio of one row.
    """
    inputs = []
    for value in values:
        of_slots = onnx.ValueInfoProto()
        of_slots.CopyFrom(value)
        of_slots.name = NATIVE + value.name
        of_slots.type.tensor_type.shape.dim[0].dim_param = "slots"
        inputs.append(of_slots)
    return inputs


def _choose_positions(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Change a graph, in place, so that it computes logits only for some of the concatenated tokens of a pass: those at
    the positions in the new input WANTED. The logits are then [1, wanted, vocab_size].

    Raises DoesNotFit if the graph returns only the logits of the last token, and the hidden states of all tokens are
    not found in it.
    """
    head = find_head(graph, decoder.logits)
    if head is not None and decoder.gives_last_logits_only:
        states = _all_states(graph, head.states)
        head.insert_selection(graph, helper.make_node("Gather", [states, WANTED], [_STATES], axis=1))
    elif head is not None:
        head.insert_selection(graph, helper.make_node("Gather", [head.states, WANTED], [_STATES], axis=1))
    elif decoder.gives_last_logits_only:
        raise DoesNotFit("its graph gives the logits of the last token only")
    else:  # all logits are computed
        complete = f"{decoder.logits}.all"
        for node in graph.node:
            for names in (node.input, node.output):
                for position, name in enumerate(names):
                    if name == decoder.logits:
                        names[position] = complete
        graph.node.append(helper.make_node("Gather", [complete, WANTED], [decoder.logits], axis=1))
    logits = next(value for value in graph.output if value.name == decoder.logits)
    logits.type.tensor_type.shape.dim[0].dim_value = 1
    logits.type.tensor_type.shape.dim[1].dim_param = "wanted"


def _all_states(graph: onnx.GraphProto, last: str) -> str:
    """Return the name of the hidden states of all tokens in a graph that selects those of the last token from them.
    `last` is the name of the hidden states of the last token.

    Raises DoesNotFit if no such selection is found.
    """
    makers = {output: node for node in graph.node for output in node.output}
    while (maker := makers.get(last)) is not None and maker.op_type in {"Squeeze", "Unsqueeze"}:
        last = maker.input[0]
    if maker is None or maker.op_type not in {"Gather", "Slice"}:
        raise DoesNotFit("its graph gives the logits of the last token only")
    states: str = maker.input[0]
    return states


def _join_ropes(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Change a graph, in place, that uses other rope (rotary position embedding) factors for long sequences than for
    short ones: its branch between the two becomes one table with the cosines and sines of both. A pass can then have
    short and long rows.

    Graphs without such a branch are not changed. Raises DoesNotFit if attention does not read its cosines and sines
    from this branch, or on a device with paged attention.
    """
    if decoder.switches_at is None:
        return
    if decoder.block_tokens:
        raise DoesNotFit("its rope has other factors for long rows, which paged attention does not take")
    switches_at, folder = decoder.switches_at, decoder.path.parent  # which may have the constants in files
    attentions = [node for node in graph.node if node.op_type == ATTENTION]
    looked_up = {name for node in attentions for name in node.input[_ROPE]}
    for branch in [node for node in graph.node if node.op_type == "If"]:
        cases = {attribute.name: _constants(attribute.g, folder) for attribute in branch.attribute}
        for name, short, long in zip(branch.output, cases["else_branch"], cases["then_branch"], strict=True):
            if name not in looked_up or len(short) < switches_at:
                raise DoesNotFit("its graph switches constants that are not those of its rope")
            graph.initializer.append(numpy_helper.from_array(np.concatenate([short[:switches_at], long]), name))
        graph.node.remove(branch)
    for node in attentions:
        _set_rope_positions(node)


def _set_rope_positions(node: onnx.NodeProto) -> None:
    """Change an attention node, in place, so that it reads its cosines and sines of the rope (rotary position
    embedding) at the positions in the graph input ROPE_POSITIONS.

    A node without cosines and sines is not changed, because other nodes have rotated its queries and keys.
    """
    if all(node.input[_ROPE]):
        node.input.extend([""] * (_POSITIONS + 1 - len(node.input)))
        node.input[_POSITIONS] = ROPE_POSITIONS


def _constants(graph: onnx.GraphProto, folder: Path) -> list[NDArray[Any]]:
    """Return the values of the outputs, in order, of a graph that consists of constants, such as one side of a branch.

    `folder` has the files in which constants are stored outside of the graph.
    """
    tensors = {value.name: value for value in graph.initializer}
    tensors |= {node.output[0]: node.attribute[0].t for node in graph.node}
    return [numpy_helper.to_array(tensors[value.name], str(folder)) for value in graph.output]


def _cast_to_half(node: onnx.NodeProto, halved: dict[str, str]) -> list[onnx.NodeProto]:
    """Change an attention node, in place, so that it computes in 16 bits. Returns new nodes that cast its inputs to 16
    bits, which must be added to the graph.

    `halved` maps the names of values that are cast already to the names of the results; these values are not cast
    again. The function adds the newly cast values to it.
    """
    casts = []
    for position in _FLOATS:
        if position < len(node.input) and (name := node.input[position]):
            if name not in halved:
                halved[name] = name + _HALF
                casts.append(helper.make_node("Cast", [name], [halved[name]], to=TensorProto.FLOAT16))
            node.input[position] = halved[name]
    node.output[0] += _HALF
    return casts
