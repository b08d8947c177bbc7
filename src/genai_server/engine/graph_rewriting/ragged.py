"""Rewrites a decoder's graph so that one pass reads any number of tokens of each of several rows (a ragged batch).

A row is a sequence in the pass. The tokens of all rows are concatenated to one flat row [1, tokens], so each matrix is
read once for all of them. Only attention, and layers with recurrent states, have to distinguish the rows. On CPUs they
become operators of genai-server-native, whose inputs say where each row's tokens begin and which KV cache slot the row
has (native_attention.py, ragged_states.py, low_rank.py). On a device with memory of its own, paged attention replaces
attention (paged_attention.py).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.decoder_graph import ATTENTION, DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.cross_attention import CROSS_ATTENTION
from genai_server.engine.graph_rewriting.low_rank import stack_ranks
from genai_server.engine.graph_rewriting.native_attention import (
    NATIVE,
    cache,
    native_inputs,
    to_native,
    to_native_cross,
)
from genai_server.engine.graph_rewriting.nodes import drop_unread, replace
from genai_server.engine.graph_rewriting.output_head import find_head
from genai_server.engine.graph_rewriting.paged_attention import paged_inputs, pool, to_paged
from genai_server.engine.graph_rewriting.ragged_states import StateLayers

_value = helper.make_tensor_value_info
# int64 [K]: the flat positions whose logits are computed.
WANTED = "genai_server.wanted"
# int64 [1, T]: where each flat token's cosines and sines are, of a graph with other ones for long rows
# (`DecoderGraph.switches_at`), which lie behind those for short ones.
ROPE_PLACES = "genai_server.rope_places"
_STATES = "genai_server.wanted_states"
# Ends the names of values in 16 bits.
_HALF = ".half"
# Inputs of a GroupQueryAttention.
_ROPE, _POSITIONS = slice(7, 9), 9
_PRESENT = slice(1, 3)
# Inputs of the type of the queries: these, keys, values, cosines, sines, a sink for each head, and norms.
_FLOATS = (0, 1, 2, 7, 8, 11, 14, 15)


def make_ragged(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Rewrite a decoder's graph, in place, so that it reads the flat tokens of many rows, with a KV cache of the data
    type in `decoder`.

    Raises DoesNotFit if that is impossible; the graph is then partly changed and must not be used.
    """
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    cache_type = helper.np_dtype_to_tensor_dtype(np.dtype(decoder.cache_type))
    graph_type = inputs[decoder.past_names[0]].type.tensor_type.elem_type
    _choose_positions(graph, decoder)
    _join_ropes(graph, decoder)
    new_outputs = [outputs[name] for name in (decoder.logits, decoder.hidden_output) if name]
    new_inputs = [_value(WANTED, TensorProto.INT64, ["wanted"]), _value(ROPE_PLACES, TensorProto.INT64, [1, "tokens"])]
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
    drop_unread(graph)
    read = {name for node in graph.node for name in node.input}
    if decoder.attention_mask and decoder.attention_mask in read:
        raise DoesNotFit("its graph reads the attention mask outside of attention")
    replace(graph.input, [value for value in [*graph.input, *new_inputs] if value.name in read])


def _paged_nodes(graph: onnx.GraphProto, *, halves: bool) -> list[onnx.NodeProto]:
    """Return the nodes of a graph, with PagedAttention in place of GroupQueryAttention.

    With `halves`, attention computes in 16 bits: its inputs are cast to 16 bits, and its result is cast to 32 bits.
    """
    nodes: list[onnx.NodeProto] = []
    casts: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != ATTENTION:
            nodes.append(node)
            continue
        half = node.output[0]
        nodes += _in_half(node, casts) if halves else []
        nodes += to_paged(node)
        if halves:
            nodes.append(helper.make_node("Cast", [f"{half}{_HALF}"], [half], to=TensorProto.FLOAT))
    return nodes


def _native_nodes(graph: onnx.GraphProto, decoder: DecoderGraph, states: StateLayers) -> list[onnx.NodeProto]:
    """Return the nodes of a graph, with genai-server-native's operators for attention and for layers with recurrent
    states.
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
    """Return graph inputs for the encoded audio of all slots, [slots, heads, frames, size]. `values` are the graph's
    inputs for the audio of one row.
    """
    found = []
    for value in values:
        of_slots = onnx.ValueInfoProto()
        of_slots.CopyFrom(value)
        of_slots.name = NATIVE + value.name
        of_slots.type.tensor_type.shape.dim[0].dim_param = "slots"
        found.append(of_slots)
    return found


def _choose_positions(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Change a graph, in place, so that it computes logits only for the flat positions in the new input WANTED: [1,
    wanted, vocab_size].

    Raises DoesNotFit if the graph returns only the logits of the last token, and its hidden states are not found.
    """
    head = find_head(graph, decoder.logits)
    if head is not None and decoder.gives_last_logits_only:
        states = _all_states(graph, head.states)
        head.read_through(graph, helper.make_node("Gather", [states, WANTED], [_STATES], axis=1))
    elif head is not None:
        head.read_through(graph, helper.make_node("Gather", [head.states, WANTED], [_STATES], axis=1))
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
    """Return the name of the hidden states of all tokens. `last` is the name of those of the last token, which the
    graph selects from them.

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
    """Replace the branch between short and long factors of the rope (rotary position embedding) with one table that has
    the cosines and sines for both, in place.

    A pass can then have rows with short and rows with long factors. Raises DoesNotFit if attention does not read its
    cosines and sines from this branch.
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
        _place_rope(node)


def _place_rope(node: onnx.NodeProto) -> None:
    """Make an attention node read its cosines and sines at the positions in the graph input ROPE_PLACES.

    A node without cosines and sines is not changed, because other nodes have rotated its queries and keys.
    """
    if all(node.input[_ROPE]):
        node.input.extend([""] * (_POSITIONS + 1 - len(node.input)))
        node.input[_POSITIONS] = ROPE_PLACES


def _constants(graph: onnx.GraphProto, folder: Path) -> list[NDArray[Any]]:
    """Return the values of the outputs of a graph that has nothing but constants, in order.

    `folder` has the files in which constants are stored outside of the graph.
    """
    found = {value.name: value for value in graph.initializer}
    found |= {node.output[0]: node.attribute[0].t for node in graph.node}
    return [numpy_helper.to_array(found[value.name], str(folder)) for value in graph.output]


def _in_half(node: onnx.NodeProto, halved: dict[str, str]) -> list[onnx.NodeProto]:
    """Change an attention node, in place, so that it computes in 16 bits. Returns new nodes that cast its inputs.

    `halved` has the names of the cast values by those of the inputs. Inputs in it are not cast again, and new ones are
    added.
    """
    made = []
    for position in _FLOATS:
        if position < len(node.input) and (name := node.input[position]):
            if name not in halved:
                halved[name] = name + _HALF
                made.append(helper.make_node("Cast", [name], [halved[name]], to=TensorProto.FLOAT16))
            node.input[position] = halved[name]
    node.output[0] += _HALF
    return made
