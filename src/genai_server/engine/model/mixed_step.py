"""A decoder's graph for steps that decode rows and read a chunk of one prompt in the same pass.

All tokens lie in one flat row [1, R + C], so each matrix is read once for them. Only attention is split: one
GroupQueryAttention takes the R decoding rows [R, 1], another the chunk [1, C], each with key-value buffers of its own.
On CPU, ONNX Runtime's GroupQueryAttention takes several tokens after a cached prefix for a single row only. So a step
has at most one chunk.
"""

from collections.abc import Iterable
from typing import Any

import onnx
from onnx import TensorProto, helper

from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.model.output_head import find_head

# Inputs. SPLIT is int64 [2]: R and C. ROWS is int64 [K]: the positions in the flat row whose logits are computed.
SPLIT, ROWS = "genai_server.split", "genai_server.rows"
# Prefixes of the two parts' inputs. Past keys and values are `{part}{name}`. LAST [rows] is each row's length after the
# pass, less one. LONGEST [] is the longest row's length after the pass. Both are int32.
DECODE, CHUNK = "genai_server.decode.", "genai_server.chunk."
LAST, LONGEST = "last", "longest"
_WANTED = "genai_server.wanted_states"
_ATTENTION = "GroupQueryAttention"
# Inputs of a GroupQueryAttention: queries, keys and values come first, then these.
_PAST, _LENGTHS, _REST = slice(3, 5), slice(5, 7), slice(7, None)
_PRESENT = slice(1, 3)
# The remaining inputs with a value for each row: positions and an attention bias.
_OF_ROWS = (9, 10)


def mix_steps(graph: onnx.GraphProto, decoder: DecoderGraph) -> bool:
    """Change a decoder's graph to take rows and a chunk. False means failure, and may leave the graph broken."""
    head = None if decoder.gives_last_logits_only else find_head(graph, decoder.logits)
    if head is None or any(name for node in _attentions(graph) for name in _inputs(node, *_OF_ROWS)):
        return False
    head.read_through(graph, helper.make_node("Gather", [head.states, ROWS], [_WANTED], axis=1))
    nodes: list[onnx.NodeProto] = []
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    new_inputs = [_value(SPLIT, TensorProto.INT64, [2]), _value(ROWS, TensorProto.INT64, ["wanted"])]
    new_outputs = []
    for part, rows in ((DECODE, "decode_rows"), (CHUNK, 1)):
        new_inputs.append(_value(part + LAST, TensorProto.INT32, [rows]))
        new_inputs.append(_value(part + LONGEST, TensorProto.INT32, []))
    for node in list(graph.node):
        if node.op_type != _ATTENTION:
            nodes.append(node)
            continue
        nodes += _split(node)
        for part in (DECODE, CHUNK):
            new_inputs += [_cache(inputs[name], part) for name in node.input[_PAST]]
            new_outputs += [_cache(outputs[name], part) for name in node.output[_PRESENT]]
    _set(graph.node, nodes)
    _set(graph.value_info, [])
    _set(graph.output, [outputs[decoder.logits], *new_outputs])
    _drop_unread(graph)
    read = {name for node in graph.node for name in node.input}
    _set(graph.input, [value for value in [*graph.input, *new_inputs] if value.name in read])
    return decoder.attention_mask not in read


def _attentions(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == _ATTENTION]


def _inputs(node: onnx.NodeProto, *positions: int) -> list[str]:
    return [node.input[position] for position in positions if position < len(node.input)]


def _split(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that replace an attention: one for the rows, one for the chunk, and those that split and join."""
    made, out = [], node.output[0]
    read: dict[str, list[str]] = {DECODE: [], CHUNK: []}
    for position, name in enumerate(node.input[: _PAST.start]):  # packed or separate queries, keys and values
        if not name:
            read[DECODE].append("")
            read[CHUNK].append("")
            continue
        flat, rows, chunk = (f"{out}.{position}.{kind}" for kind in ("flat", "rows", "chunk"))
        made.append(helper.make_node("Split", [name, SPLIT], [flat, chunk], axis=1))
        made.append(helper.make_node("Transpose", [flat], [rows], perm=[1, 0, 2]))
        read[DECODE].append(rows)
        read[CHUNK].append(chunk)
    for part, queries in read.items():
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = part + node.name
        _set(copy.input, [*queries, *(part + name for name in node.input[_PAST]), part + LAST, part + LONGEST])
        copy.input.extend(node.input[_REST])
        _set(copy.output, [part + out, *(part + name for name in node.output[_PRESENT])])
        made.append(copy)
    made.append(helper.make_node("Transpose", [DECODE + out], [f"{out}.joined"], perm=[1, 0, 2]))
    made.append(helper.make_node("Concat", [f"{out}.joined", CHUNK + out], [out], axis=1))
    return made


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes without read outputs, such as those that took lengths from the attention mask."""
    wanted = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):  # in a graph each node follows the nodes that it reads
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(name for a in node.attribute for inner in a.g.node for name in inner.input)
    _set(graph.node, kept[::-1])


def _cache(value: onnx.ValueInfoProto, part: str) -> onnx.ValueInfoProto:
    """A buffer of one of the two parts, with its own number of rows and length."""
    found = onnx.ValueInfoProto()
    found.CopyFrom(value)
    found.name = part + value.name
    found.type.tensor_type.shape.dim[0].dim_param = part + "rows"
    found.type.tensor_type.shape.dim[2].dim_param = part + "length"
    return found


def _value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _set(field: Any, values: Iterable[Any]) -> None:
    """Replace the values of a repeated field."""
    values = list(values)
    del field[:]
    field.extend(values)
