"""Attention of genai-server-native over flat tokens, for a decoder's ragged graph on a CPU.

The operator RaggedAttention (native/README.md) reads the flat tokens of any rows, rotates queries and keys, writes keys
and values into the rows' slots, and attends. It needs neither padding nor groups of rows, and a token's result is
bitwise the same next to any others, however its text is cut into passes. The slots are inputs of the graph to which the
operator writes: the memory that is bound is the cache.
"""

import onnx
from onnx import TensorProto, helper

from genai_server.engine.decoder_graph import PAST, DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.packed_products import DOMAIN
from genai_server.engine.graph_rewriting.paged_attention import shared_attributes

OPERATOR = "RaggedAttention"
# Begins the names of inputs: those of keys and values of all slots have the graph's names behind it.
NATIVE = "genai_server.native."
# Inputs of a pass over R rows, int32: [R + 1] where each row's flat tokens begin, and where the last ones end; [R] the
# lengths of their pasts; [R] their slots.
STARTS, PASTS, SLOTS = (f"{NATIVE}{name}" for name in ("starts", "pasts", "slots"))
# The operator's own attributes: ONNX Runtime's that say the same.
_ATTRIBUTES = {
    *("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "rotary_interleaved", "qk_norm_epsilon"),
}
# Inputs of a GroupQueryAttention that the operator has at other places.
_COS, _SIN, _POSITIONS, _SINKS, _QUERY_NORM, _KEY_NORM = 7, 8, 9, 11, 14, 15
_QUANTIZED = (12, 13)


def native_inputs() -> list[onnx.ValueInfoProto]:
    """What a pass needs besides the slots."""
    return [
        helper.make_tensor_value_info(STARTS, TensorProto.INT32, ["bounds_of_rows"]),
        helper.make_tensor_value_info(PASTS, TensorProto.INT32, ["rows"]),
        helper.make_tensor_value_info(SLOTS, TensorProto.INT32, ["rows"]),
    ]


def cache(value: onnx.ValueInfoProto, kind: int, decoder: DecoderGraph) -> onnx.ValueInfoProto:
    """The keys or values of a layer of all slots, of an element type: [slots, kv_heads, length, head_size]."""
    shape: list[str | int] = ["slots", decoder.num_kv_heads, "slot_length", decoder.head_size]
    return helper.make_tensor_value_info(NATIVE + value.name, kind, shape)


def to_native(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node that replaces a GroupQueryAttention over the flat tokens [1, T, …]. Raises DoesNotFit."""
    attributes = {attribute.name: attribute for attribute in shared_attributes(node)}
    given = [*node.input, *[""] * (_KEY_NORM + 1 - len(node.input))]
    if any(given[place] for place in _QUANTIZED):
        raise DoesNotFit("its keys and values are quantized")
    rotates = bool(attributes["do_rotary"].i) if "do_rotary" in attributes else False
    ropes = [given[place] if rotates else "" for place in (_COS, _SIN, _POSITIONS)]
    rest = [given[place] for place in (_SINKS, _QUERY_NORM, _KEY_NORM)]
    inputs = [*given[:3], *(NATIVE + name for name in given[PAST]), STARTS, PASTS, SLOTS, *ropes, *rest]
    found = helper.make_node(OPERATOR, inputs, node.output[:1], node.name, domain=DOMAIN)
    found.attribute.extend(attribute for name, attribute in attributes.items() if name in _ATTRIBUTES)
    return found
