"""Rewrites decoders with cross-attention to audio, as onnxruntime-genai's model builder writes them for Whisper.

Each layer has two attentions: self-attention, as other decoders have, and cross-attention over the keys and values of
the encoded audio. The builder writes both as MultiHeadAttention, with positions that are the same for all rows of a
batch. The rewritten graph has the form that the rest of the engine knows: GroupQueryAttention for self-attention,
positions as an input, and the keys and values of the audio as read-only states of each row.
"""

import onnx
from onnx import TensorProto, helper

from genai_server.engine.decoder_graph import ATTENTION, DecoderGraph, DoesNotFit

CROSS_ATTENTION = "MultiHeadAttention"
# Inputs of a MultiHeadAttention.
_SOUND, _PAST = slice(1, 3), slice(6, 8)
_FORMS = {"num_heads", "scale", "unidirectional", "mask_filter_value"}
# The input of a rewritten graph, int64 [1, tokens].
POSITIONS = "genai_server.positions"


def use_known_operators(graph: onnx.GraphProto, decoder: DecoderGraph) -> None:
    """Rewrite a graph with cross-attention to the form that `read_cross_decoder` describes. Raises DoesNotFit."""
    inputs = {value.name: value for value in graph.input}
    inputs[decoder.input_ids].type.tensor_type.elem_type = TensorProto.INT64
    positions = find_positions(graph)
    graph.input.append(helper.make_tensor_value_info(POSITIONS, TensorProto.INT64, [1, "tokens"]))
    sounds = {state.past for state in decoder.cross_states}
    for node in graph.node:
        if node.op_type != CROSS_ATTENTION:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if not attributes.keys() <= _FORMS:
            raise DoesNotFit(f"its {CROSS_ATTENTION} has attributes that the runner does not know")
        given = [*node.input, *[""] * (_PAST.stop - len(node.input))]
        if sounds.issuperset(given[_SOUND]):
            continue
        if not attributes.get("unidirectional") or not all(given[_PAST]) or any(given[_SOUND.stop : _PAST.start]):
            raise DoesNotFit(f"its {CROSS_ATTENTION} has a form that the runner does not know")
        heads = attributes["num_heads"]
        scale = {"scale": attributes["scale"]} if "scale" in attributes else {}
        known = helper.make_node(
            ATTENTION,
            [*given[: _SOUND.stop], *given[_PAST]],
            list(node.output),
            node.name,
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=heads,
            **scale,
        )
        node.CopyFrom(known)
    for node in graph.node:
        if list(node.output) == [positions.output[0]]:
            node.CopyFrom(helper.make_node("Gather", [positions.input[0], POSITIONS], list(node.output), axis=0))


def find_positions(graph: onnx.GraphProto) -> onnx.NodeProto:
    """The node that takes position embeddings from their table. Raises DoesNotFit if there is not exactly one."""
    tables = {value.name for value in graph.initializer if len(value.dims) == 2}
    found = [node for node in graph.node if node.op_type == "Slice" and node.input[0] in tables]
    if len(found) != 1:
        raise DoesNotFit("its graph has no table of positions")
    node: onnx.NodeProto = found[0]
    return node
