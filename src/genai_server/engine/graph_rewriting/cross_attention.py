"""Rewrites decoders with cross-attention to audio, as onnxruntime-genai's model builder writes them for Whisper: for
decoding in a batch (`normalize_decoder`), and to find when tokens were spoken (`score_heads`).

Each layer has self-attention, as in other decoders, and cross-attention over the keys and values of the encoded audio.
The builder writes both as MultiHeadAttention, with positions that are the same for all rows of a batch. For decoding in
a batch, self-attention becomes GroupQueryAttention, positions become an input, and the keys and values of the audio
become states of each row that are only read.

To find when tokens were spoken, the graph is rewritten to return its cross-attention scores, which are products of
queries and keys. It then ends with the last layer of which a head is needed, so neither later layers nor the output
head are loaded.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_description import ATTENTION, DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.onnx_graph import remove_unused_nodes, replace

CROSS_ATTENTION = "MultiHeadAttention"
# Inputs of a MultiHeadAttention.
_AUDIO, _PAST = slice(1, 3), slice(6, 8)
_FORMS = {"num_heads", "scale", "unidirectional", "mask_filter_value"}
# The input of a rewritten graph, int64 [1, tokens].
POSITIONS = "genai_server.positions"


def normalize_decoder(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Rewrite the decoder's graph of a speech recognition model, in place, to a form that other modules can change to
    read several sequences in a pass. `decoder` describes this form.

    Self-attention becomes GroupQueryAttention, and the positions of tokens become an input of the graph. Raises
    DoesNotFit if the graph has another form than the model builder writes.
    """
    inputs = {value.name: value for value in graph.input}
    inputs[decoder.input_ids].type.tensor_type.elem_type = TensorProto.INT64
    positions = find_positions(graph)
    graph.input.append(helper.make_tensor_value_info(POSITIONS, TensorProto.INT64, [1, "tokens"]))
    audio_states = {state.past for state in decoder.cross_states}
    for node in graph.node:
        if node.op_type != CROSS_ATTENTION:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if not attributes.keys() <= _FORMS:
            raise DoesNotFit(f"its {CROSS_ATTENTION} has attributes that the runner does not know")
        old_inputs = [*node.input, *[""] * (_PAST.stop - len(node.input))]
        if audio_states.issuperset(old_inputs[_AUDIO]):
            continue
        if (
            not attributes.get("unidirectional")
            or not all(old_inputs[_PAST])
            or any(old_inputs[_AUDIO.stop : _PAST.start])
        ):
            raise DoesNotFit(f"its {CROSS_ATTENTION} has a form that the runner does not know")
        heads = attributes["num_heads"]
        scale = {"scale": attributes["scale"]} if "scale" in attributes else {}
        attention = helper.make_node(
            ATTENTION,
            [*old_inputs[: _AUDIO.stop], *old_inputs[_PAST]],
            list(node.output),
            node.name,
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=heads,
            **scale,
        )
        node.CopyFrom(attention)
    for node in graph.node:
        if list(node.output) == [positions.output[0]]:
            node.CopyFrom(helper.make_node("Gather", [positions.input[0], POSITIONS], list(node.output), axis=0))


def find_positions(graph: onnx.GraphProto) -> onnx.NodeProto:
    """Return the node of a speech decoder's graph that looks up position embeddings in a table. Raises DoesNotFit
    unless there is exactly one.
    """
    tables = {value.name for value in graph.initializer if len(value.dims) == 2}
    lookups = [node for node in graph.node if node.op_type == "Slice" and node.input[0] in tables]
    if len(lookups) != 1:
        raise DoesNotFit("its graph has no table of positions")
    node: onnx.NodeProto = lookups[0]
    return node


_PREFIX = "genai_server.scores."
# Inputs of a MultiHeadAttention.
_QUERIES, _KEYS = 0, 1


def score_heads(graph: onnx.GraphProto, decoder: DecoderGraph, heads: dict[int, list[int]]) -> list[str]:
    """Rewrite the decoder's graph of a speech recognition model, in place, so that it returns only the cross-attention
    scores (before the softmax) of some heads. They show which audio each token attends to.

    `heads` has the numbers of the wanted heads by layer. Returns the names of the new outputs, one for each layer,
    float32 [1, heads, tokens, frames]. Raises DoesNotFit if the graph has another form than the model builder writes.
    """
    keys = {state.past: layer for layer, state in enumerate(decoder.cross_states[::2])}
    score_nodes: dict[int, list[onnx.NodeProto]] = {}
    for node in graph.node:
        if node.op_type == CROSS_ATTENTION and (layer := keys.get(node.input[_KEYS])) in heads:
            score_nodes[layer] = _scores(graph, node, layer, heads[layer], decoder.head_size)
    if missing := sorted(heads.keys() - score_nodes.keys()):
        raise DoesNotFit(f"its layer {missing[0]} has no attention to the audio")
    graph.node.extend(node for layer in sorted(score_nodes) for node in score_nodes[layer])
    names = [f"{_PREFIX}{layer}" for layer in sorted(score_nodes)]
    replace(graph.output, [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names])
    remove_unused_nodes(graph)
    read_names = {name for node in graph.node for name in node.input}
    for field in (graph.input, graph.initializer):
        replace(field, [value for value in field if value.name in read_names])
    del graph.value_info[:]
    return names


def _scores(
    graph: onnx.GraphProto, node: onnx.NodeProto, layer: int, heads: list[int], head_size: int
) -> list[onnx.NodeProto]:
    """Return nodes that compute the cross-attention scores of the `heads` of one layer: scaled products of queries and
    keys, before the softmax.

    `node` is the cross-attention of the layer, with queries [1, tokens, width] and keys [1, heads, frames, head_size].
    The output of the last returned node is [1, wanted heads, tokens, frames], and its name ends with the number of the
    layer. Constants are added to `graph`.
    """
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
