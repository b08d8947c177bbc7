"""Rewrites the decoder of a speech recognition model so that it returns its attention scores over the audio.

The graphs of the model builder do not return these scores. The rewritten graph has outputs with the products of queries
and keys. It ends with the last layer that has one of the wanted heads, so neither later layers nor the output head are
loaded.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.decoder_graph import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.cross_attention import CROSS_ATTENTION
from genai_server.engine.graph_rewriting.nodes import replace
from genai_server.engine.graph_rewriting.ragged import drop_unread

_PREFIX = "genai_server.scores."
# Inputs of a MultiHeadAttention.
_QUERIES, _KEYS = 0, 1


def score_heads(graph: onnx.GraphProto, decoder: DecoderGraph, heads: dict[int, list[int]]) -> list[str]:
    """Rewrite a graph to return only the cross-attention scores of some heads, float32 [1, heads, tokens, frames].

    `heads` has the numbers of the wanted heads by layer. Returns the names of the outputs, one for each layer. Raises
    DoesNotFit.
    """
    keys = {state.past: layer for layer, state in enumerate(decoder.cross_states[::2])}
    made: dict[int, list[onnx.NodeProto]] = {}
    for node in graph.node:
        if node.op_type == CROSS_ATTENTION and (layer := keys.get(node.input[_KEYS])) in heads:
            made[layer] = _scores(graph, node, layer, heads[layer], decoder.head_size)
    if missing := sorted(heads.keys() - made.keys()):
        raise DoesNotFit(f"its layer {missing[0]} has no attention to the sound")
    graph.node.extend(node for layer in sorted(made) for node in made[layer])
    names = [f"{_PREFIX}{layer}" for layer in sorted(made)]
    replace(graph.output, [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names])
    drop_unread(graph)
    read = {name for node in graph.node for name in node.input}
    for field in (graph.input, graph.initializer):
        replace(field, [value for value in field if value.name in read])
    del graph.value_info[:]
    return names


def _scores(
    graph: onnx.GraphProto, node: onnx.NodeProto, layer: int, heads: list[int], head_size: int
) -> list[onnx.NodeProto]:
    """Nodes that multiply queries [1, tokens, width] with keys [1, heads, frames, head_size] of some heads."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    name = f"{_PREFIX}{layer}"
    scale = attributes.get("scale", head_size**-0.5)
    constants = {
        "shape": np.array([0, 0, attributes["num_heads"], head_size]),
        "heads": np.array(sorted(heads)),
        "scale": np.float32(scale),
    }
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), f"{name}.{key}") for key, value in constants.items()
    )

    def apply(kind: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        inputs = [each.replace("~", f"{name}.") for each in inputs]
        return helper.make_node(kind, inputs, [f"{name}{output}"], **attributes)

    return [
        apply("Cast", [node.input[_QUERIES]], ".queries", to=TensorProto.FLOAT),
        apply("Reshape", ["~queries", "~shape"], ".split"),
        apply("Gather", ["~split", "~heads"], ".chosen", axis=2),
        apply("Transpose", ["~chosen"], ".rows", perm=[0, 2, 1, 3]),
        apply("Gather", [node.input[_KEYS], "~heads"], ".keys", axis=1),
        apply("Cast", ["~keys"], ".cast", to=TensorProto.FLOAT),
        apply("Transpose", ["~cast"], ".columns", perm=[0, 1, 3, 2]),
        apply("MatMul", ["~rows", "~columns"], ".products"),
        apply("Mul", ["~products", "~scale"], ""),
    ]
