"""Replaces the attention of a decoder's graph with RaggedAttention, the operator of genai-server-native for CPUs
(`to_native`, `to_native_cross`). The graph then reads tokens of many rows (sequences) in one pass.

RaggedAttention (native/README.md) reads the tokens of all rows, concatenated ("flat"), rotates queries and keys, writes
the tokens' keys and values into the rows' KV cache slots, and attends. A token's result is bitwise the same, whatever
other tokens are in the pass and however its prompt is divided into passes. The KV cache of all slots is an input of the
graph to which the operator also writes, so the memory that is bound as this input is the cache itself.

The decoder of a speech recognition model also attends to the keys and values of the encoded audio. In that case the
operator reads all frames of a slot, and writes nothing.
"""

from typing import Any

import onnx
from onnx import TensorProto, helper

from genai_server.engine.graph_description import PAST, DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.packed_products import DOMAIN
from genai_server.engine.graph_rewriting.paged_attention import shared_attributes

OPERATOR = "RaggedAttention"
# Prefix of input names. The keys, values and states of all slots have this prefix before the graph's names.
NATIVE = "genai_server.native."
# Inputs of a pass over R rows, int32: [R + 1] where each row's flat tokens begin, and where the last ones end; [R] the
# lengths of their pasts; [R] their slots; [R] how many of their tokens change the states of the slots.
STARTS, PASTS, SLOTS, COMMITTED = (f"{NATIVE}{name}" for name in ("starts", "pasts", "slots", "committed"))
# Head sizes are multiples of this, up to the largest.
_HEAD_STEP, _MAX_HEAD = 16, 1024
# The operator's attributes, which have the same names in ONNX Runtime.
_ATTRIBUTES = {
    *("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "rotary_interleaved", "qk_norm_epsilon"),
}
# Inputs of a GroupQueryAttention that the operator has at other indices.
_COS, _SIN, _POSITIONS, _SINKS, _QUERY_NORM, _KEY_NORM = 7, 8, 9, 11, 14, 15
_QUANTIZED = (12, 13)
# Inputs of a MultiHeadAttention.
_QUERIES, _AUDIO = 0, slice(1, 3)


def native_inputs() -> list[onnx.ValueInfoProto]:
    """Return descriptions of the int32 inputs that say which tokens of a pass belong to which row (sequence), for
    graphs whose attention is RaggedAttention. The KV cache is not among them.

    STARTS has the index of each row's first token among the concatenated tokens of all rows, and the end of the last
    row. The others have a number for each row: PASTS is the number of its cached tokens, SLOTS its KV cache slot, and
    COMMITTED the number of its tokens in this pass that are not draft tokens.
    """
    return [
        helper.make_tensor_value_info(STARTS, TensorProto.INT32, ["bounds_of_rows"]),
        *(helper.make_tensor_value_info(name, TensorProto.INT32, ["rows"]) for name in (PASTS, SLOTS, COMMITTED)),
    ]


def cache(value: onnx.ValueInfoProto, kind: int, decoder: DecoderGraph) -> onnx.ValueInfoProto:
    """Return the description of the graph input for one layer's keys, or values, in all KV cache slots, of the shape
    [slots, kv_heads, length, cache_width].

    `value` is the original input for one sequence, and `kind` is the ONNX element type of the KV cache. `decoder` has
    the sizes.
    """
    shape: list[str | int] = ["slots", decoder.num_kv_heads, "slot_length", decoder.cache_width]
    return helper.make_tensor_value_info(NATIVE + value.name, kind, shape)


def to_native(node: onnx.NodeProto, decoder: DecoderGraph) -> onnx.NodeProto:
    """Return the RaggedAttention node that replaces `node`, a GroupQueryAttention of a decoder, whose tokens are the
    concatenated tokens of all rows, [1, tokens, …].

    Raises DoesNotFit if RaggedAttention cannot compute the same.
    """
    attributes = {attribute.name: attribute for attribute in shared_attributes(node)}
    old_inputs = [*node.input, *[""] * (_KEY_NORM + 1 - len(node.input))]
    if any(old_inputs[index] for index in _QUANTIZED):
        raise DoesNotFit("its keys and values are quantized")
    _check_head_size(decoder.head_size)
    rotates = bool(attributes["do_rotary"].i) if "do_rotary" in attributes else False
    ropes = [old_inputs[index] if rotates else "" for index in (_COS, _SIN, _POSITIONS)]
    optional = [old_inputs[index] for index in (_SINKS, _QUERY_NORM, _KEY_NORM)]
    inputs = [*old_inputs[:3], *(NATIVE + name for name in old_inputs[PAST]), STARTS, PASTS, SLOTS, *ropes, *optional]
    attention = helper.make_node(OPERATOR, inputs, node.output[:1], node.name, domain=DOMAIN)
    attention.attribute.extend(attribute for name, attribute in attributes.items() if name in _ATTRIBUTES)
    if decoder.has_bf16_attention:
        attention.attribute.append(helper.make_attribute("bf16", 1))
    return attention


def to_native_cross(node: onnx.NodeProto, decoder: DecoderGraph) -> onnx.NodeProto:
    """Return the RaggedAttention node that replaces `node`, a MultiHeadAttention with which a speech decoder attends to
    encoded audio.

    Raises DoesNotFit if RaggedAttention cannot compute the same.
    """
    used_inputs = {index for index, name in enumerate(node.input) if name}
    audio_states = {state.past: state for state in decoder.cross_states}
    attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if (
        used_inputs != {0, 1, 2}
        or not audio_states.keys() >= set(node.input[_AUDIO])
        or attributes.get("unidirectional")
    ):
        raise DoesNotFit("its attention to audio has a form that the runner does not know")
    _check_head_size(audio_states[node.input[1]].shape[2])
    given_heads: dict[str, Any] = {"num_heads": attributes["num_heads"], "kv_num_heads": attributes["num_heads"]}
    scale = {"scale": attributes["scale"]} if "scale" in attributes else {}
    inputs = [node.input[_QUERIES], "", "", *(NATIVE + name for name in node.input[_AUDIO]), STARTS, PASTS, SLOTS]
    return helper.make_node(
        OPERATOR, inputs, node.output[:1], node.name, domain=DOMAIN, causal=0, **given_heads, **scale
    )


def _check_head_size(size: int) -> None:
    if size % _HEAD_STEP or size > _MAX_HEAD:
        raise DoesNotFit(f"its attention has heads of {size} values, and not of a multiple of 16 up to {_MAX_HEAD}")
