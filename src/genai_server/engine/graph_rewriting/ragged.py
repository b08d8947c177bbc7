"""A decoder's graph for passes over any number of tokens of any rows.

All tokens of a pass lie in one flat row [1, T], so each matrix is read once for them. Only attention needs rows: it is
split into two groups, for rows of few tokens and of many. A group is a range of B slots, padded to S tokens, the number
of its longest row. GatherND makes [B, S, …] of the flat row before attention, and flat tokens after it. The operator's
input `query_seqlens` (ONNX Runtime 1.32) says how many of the S tokens each row has. With none, the row is idle and
stays unchanged. The attention of genai-server-native (native_attention.py) takes the flat row as it is, and so does
paged attention (paged_attention.py) on a device with memory of its own.

Each group has at least one row, idle or not: ONNX Runtime 1.32 ends the process with SIGFPE for a group without rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.decoder_graph import ATTENTION, PAST, DecoderGraph, DoesNotFit, local_window
from genai_server.engine.graph_rewriting.cross_attention import CROSS_ATTENTION, split_cross_attention
from genai_server.engine.graph_rewriting.groups import (
    BOUND,
    GROUPS,
    LAST,
    NEW,
    PADDED,
    PLACES,
    replace,
    split,
    value_in_group,
)
from genai_server.engine.graph_rewriting.low_rank import stack_ranks
from genai_server.engine.graph_rewriting.native_attention import cache, native_inputs, to_native
from genai_server.engine.graph_rewriting.output_head import find_head
from genai_server.engine.graph_rewriting.paged_attention import paged_inputs, pool, to_paged
from genai_server.engine.graph_rewriting.ragged_states import StateLayers

ValueInfos = list[onnx.ValueInfoProto]
_value = helper.make_tensor_value_info
# int64 [K]: the flat positions whose logits are computed.
WANTED = "genai_server.wanted"
# int64 [1, T]: where each flat token's cosines and sines are. Those for long rows (`DecoderGraph.switches_at`) lie
# behind those for short ones.
ROPE_PLACES = "genai_server.rope_places"
# The same as LAST and BOUND for layers with a window, whose buffers may begin at a later token of each row.
WINDOW_LAST, WINDOW_BOUND = "window_last", "window_bound"
# Maximum number of tokens of a row in the narrow group.
NARROW_WIDTH = 16
_STATES = "genai_server.wanted_states"
# Ends the names of values in 16 bits.
_HALF = ".half"
# Inputs of a GroupQueryAttention.
_QUERIES, _LENGTHS, _ROPE, _POSITIONS = slice(0, 3), slice(5, 7), slice(7, 9), 9
_BIAS, _QUERY_SEQLENS = 10, 16
_PRESENT = slice(1, 3)
# Inputs of the type of the queries: these, keys, values, cosines, sines, a sink for each head, and norms.
_FLOATS = (0, 1, 2, 7, 8, 11, 14, 15)
# With this attribute, the operator keeps only a window of a short buffer. A slot is never that short.
_WINDOW_CACHE = "sliding_window_cache"


def slot_length(max_length: int) -> int:
    """The length of a slot for sequences of at most `max_length` tokens.

    A row is padded to the longest of its group; the padding has to fit behind its tokens, but is never written.
    """
    return max_length + NARROW_WIDTH


def make_ragged(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Change a decoder's graph to take flat tokens, and keys and values of the decoder's type.

    Raises DoesNotFit, with the graph half changed.
    """
    if decoder.is_native and _computes_in_half(graph, decoder):
        raise DoesNotFit("it computes attention in 16 bits")
    _choose_positions(graph, decoder)
    stack_ranks(graph, decoder.low_rank_paths)
    _place_ropes(graph, decoder)
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(decoder.cache_type))
    is_narrowed = inputs[decoder.past_names[0]].type.tensor_type.elem_type != kind
    nodes: list[onnx.NodeProto] = []
    halved: dict[str, str] = {}
    new_inputs = [_value(WANTED, TensorProto.INT64, ["wanted"]), _value(ROPE_PLACES, TensorProto.INT64, [1, "tokens"])]
    new_outputs = [outputs[name] for name in (decoder.logits, decoder.hidden_output) if name]
    states = StateLayers(graph, decoder)
    new_inputs += states.inputs
    new_outputs += states.outputs
    if decoder.is_native:
        new_inputs += native_inputs()
    elif decoder.block_tokens:
        new_inputs += paged_inputs()
    else:
        new_inputs += [value for group in GROUPS for value in _group_inputs(group, decoder, inputs)]
    for node in graph.node:
        if node.op_type == CROSS_ATTENTION:
            nodes += split_cross_attention(node)
        elif node.op_type != ATTENTION:
            nodes += states.replaced(node)
        elif decoder.is_native:
            nodes.append(to_native(node))
            new_inputs += [cache(inputs[name], kind, decoder) for name in node.input[PAST]]
        else:
            nodes += _attention(node, decoder, halved if is_narrowed else None)
            new_inputs += _caches([inputs[name] for name in node.input[PAST]], decoder, kind)
            new_outputs += _caches([outputs[name] for name in node.output[_PRESENT]], decoder, kind)
    replace(graph.node, nodes)
    replace(graph.value_info, [])
    replace(graph.output, new_outputs)
    drop_unread(graph)
    read = {name for node in graph.node for name in node.input}
    if decoder.attention_mask and decoder.attention_mask in read:
        raise DoesNotFit("its graph reads the attention mask outside of attention")
    replace(graph.input, [value for value in [*graph.input, *new_inputs] if value.name in read])


def _computes_in_half(graph: onnx.GraphProto, decoder: DecoderGraph) -> bool:
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    return any(kinds[name] != TensorProto.FLOAT for name in decoder.past_names)


def _choose_positions(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Compute the logits [1, K, vocab_size] of the wanted positions only."""
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
    """The states that a graph selects those of the last token from. Raises DoesNotFit if they are not found."""
    makers = {output: node for node in graph.node for output in node.output}
    while (maker := makers.get(last)) is not None and maker.op_type in {"Squeeze", "Unsqueeze"}:
        last = maker.input[0]
    if maker is None or maker.op_type not in {"Gather", "Slice"}:
        raise DoesNotFit("its graph gives the logits of the last token only")
    states: str = maker.input[0]
    return states


def _place_ropes(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Give attention the places of cosines and sines where the lengths of its buffers do not tell them."""
    if decoder.switches_at is not None:
        _join_ropes(graph, decoder)
    elif not decoder.block_tokens and not decoder.is_native:
        for node in graph.node:
            if local_window(node):
                _place_rope(node)


def _join_ropes(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Replace a branch by its constants for both cases, so that a pass may have short and long rows.

    Raises DoesNotFit if attention does not look them up.
    """
    if decoder.block_tokens:
        raise DoesNotFit("its rope has other factors for long rows, which paged attention does not take")
    switches_at, folder = decoder.switches_at or 0, decoder.path.parent  # which may have the constants in files
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
    """Let an attention look its cosines and sines up at given places. Without any, its inputs are rotated before."""
    if all(node.input[_ROPE]):
        node.input.extend([""] * (_POSITIONS + 1 - len(node.input)))
        node.input[_POSITIONS] = ROPE_PLACES


def _constants(graph: onnx.GraphProto, folder: Path) -> list[NDArray[Any]]:
    """The outputs of a graph that has only constants."""
    found = {value.name: value for value in graph.initializer}
    found |= {node.output[0]: node.attribute[0].t for node in graph.node}
    return [numpy_helper.to_array(found[value.name], str(folder)) for value in graph.output]


def _attention(node: onnx.NodeProto, decoder: DecoderGraph, halved: dict[str, str] | None) -> list[onnx.NodeProto]:
    """The nodes that replace an attention, by ONNX Runtime's operators.

    It computes in 16 bits unless `halved` is None; this has the casts of its inputs that exist already.
    """
    before = [] if halved is None else _in_half(node, halved)
    nodes = to_paged(node) if decoder.block_tokens else _split(node)
    half = node.output[0]
    after = (
        [] if halved is None else [helper.make_node("Cast", [half], [half.removesuffix(_HALF)], to=TensorProto.FLOAT)]
    )
    return [*before, *nodes, *after]


def _in_half(node: onnx.NodeProto, halved: dict[str, str]) -> list[onnx.NodeProto]:
    """Let an attention compute in 16 bits: returns the casts of its inputs. Those in `halved` exist already."""
    made = []
    for position in _FLOATS:
        if position < len(node.input) and (name := node.input[position]):
            if name not in halved:
                halved[name] = name + _HALF
                made.append(helper.make_node("Cast", [name], [halved[name]], to=TensorProto.FLOAT16))
            node.input[position] = halved[name]
    node.output[0] += _HALF
    return made


def _split(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that replace an attention: one for each group, and those that pad, flatten and join."""
    if len(node.input) > _BIAS and node.input[_BIAS]:
        raise DoesNotFit("its attention has a bias")
    lengths = (WINDOW_LAST, WINDOW_BOUND) if local_window(node) else (LAST, BOUND)
    replace(node.attribute, [attribute for attribute in node.attribute if attribute.name != _WINDOW_CACHE])
    replace(node.output, node.output[: _PRESENT.stop])

    def inputs(group: str, made: list[onnx.NodeProto]) -> list[str]:
        found = [*node.input, *[""] * (_QUERY_SEQLENS + 1 - len(node.input))]
        for position in (*range(_QUERIES.stop), _POSITIONS):
            if found[position]:
                padded = f"{group}{node.output[0]}.{position}"
                made.append(helper.make_node("GatherND", [found[position], group + PADDED], [padded]))
                found[position] = padded
        found[PAST] = [group + name for name in node.input[PAST]]
        found[_LENGTHS] = [group + name for name in lengths]
        found[_QUERY_SEQLENS] = group + NEW
        return found

    return split(node, inputs)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes without read outputs, such as those that took lengths from the attention mask."""
    wanted = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):  # in a graph each node follows the nodes that it reads
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(name for a in node.attribute for inner in a.g.node for name in inner.input)
    replace(graph.node, kept[::-1])


def _group_inputs(group: str, decoder: DecoderGraph, inputs: Mapping[str, onnx.ValueInfoProto]) -> ValueInfos:
    """What a pass needs for a group besides the slots."""
    rows = group + "rows"
    return [
        _value(group + PADDED, TensorProto.INT64, [rows, group + "width", 2]),
        _value(group + PLACES, TensorProto.INT64, [1, group + "tokens", 2]),
        _value(group + LAST, TensorProto.INT32, [rows]),
        _value(group + BOUND, TensorProto.INT32, []),
        _value(group + NEW, TensorProto.INT32, [rows]),
        _value(group + WINDOW_LAST, TensorProto.INT32, [rows]),
        _value(group + WINDOW_BOUND, TensorProto.INT32, []),
        # A group without tokens has a sound of any length.
        *(value_in_group(inputs[state.past], group, group + "frames") for state in decoder.cross_states),
    ]


def _caches(values: Sequence[onnx.ValueInfoProto], decoder: DecoderGraph, kind: int) -> ValueInfos:
    """The pools or the groups' buffers for keys and values, of an element type."""
    if decoder.block_tokens:
        return [pool(value, kind, decoder.num_kv_heads, decoder.head_size) for value in values]
    found = [value_in_group(value, group, "slot_length") for group in GROUPS for value in values]
    for value in found:
        value.type.tensor_type.elem_type = kind
    return found
