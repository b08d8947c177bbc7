"""Replaces the attention of a decoder's graph with paged attention (`to_paged`), so that the graph reads tokens of many
rows (sequences) in one pass, on a GPU.

ONNX Runtime's operator com.microsoft.PagedAttention reads the concatenated tokens of all rows. The KV cache of all rows
is in one pool of blocks, and a table has the numbers of the blocks of each row. The operator has kernels for CUDA only,
and needs keys and values of 16 bits.
"""

import onnx
from onnx import TensorProto, helper

from genai_server.engine.graph_description import DoesNotFit

# Begins the names of pools, which have the graph's names of keys and values.
PAGED = "genai_server.paged."
# Inputs of a pass over B rows: int32 [B + 1] where each row's flat tokens begin, and where the last ones end; int32 [B]
# the lengths of their pasts; int32 [B, blocks] their blocks in order; and int32 [3] in the memory of the CPU: the most
# new tokens of a row, and twice the length of the longest row with them.
STARTS, PASTS, BLOCKS, BOUNDS = (f"{PAGED}{name}" for name in ("starts", "pasts", "blocks", "bounds"))
# Tokens of a block. The kernel for heads of up to 64 values takes multiples of this only.
BLOCK_TOKENS = 256
OPERATOR = "PagedAttention"
# Places of the inputs of both operators: the paged one has these of the other.
_INPUTS = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 7: 8, 8: 9, 11: 11, 12: 14, 13: 15, 14: 12, 15: 13}
_PAST, _STARTS, _PASTS, _BLOCKS, _BOUNDS = slice(3, 5), 5, 6, 7, 16
_POSITIONS, _BIAS, _SINK = 9, 10, 11
# Attributes of both.
_SHARED = {
    *("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "do_rotary", "rotary_interleaved"),
    *("qk_norm_epsilon", "k_quant_type", "v_quant_type"),
}
# Attributes of GroupQueryAttention alone that change nothing here. The first says how a short buffer is used.
_WITHOUT_EFFECT = {"sliding_window_cache", "kv_cache_bit_width", "qk_output"}
# Other attributes, with the values for which both operators compute the same.
_SAME = {"smooth_softmax": (-1, 0), "causal": (1,), "unidirectional": (1,)}


def paged_inputs() -> list[onnx.ValueInfoProto]:
    """Return descriptions of the int32 inputs that say which tokens and which blocks of the KV cache belong to which
    row (sequence), for graphs with paged attention. The pools of the KV cache are not among them.

    STARTS has the index of each row's first token among the concatenated tokens of all rows, and the end of the last
    row. PASTS has the number of cached tokens of each row, BLOCKS the block numbers of each row, and BOUNDS the lengths
    of the longest row.
    """
    return [
        helper.make_tensor_value_info(STARTS, TensorProto.INT32, ["bounds_of_rows"]),
        helper.make_tensor_value_info(PASTS, TensorProto.INT32, ["rows"]),
        helper.make_tensor_value_info(BLOCKS, TensorProto.INT32, ["rows", "blocks_of_a_row"]),
        helper.make_tensor_value_info(BOUNDS, TensorProto.INT32, [3]),
    ]


def pool(value: onnx.ValueInfoProto, kind: int, num_kv_heads: int, head_size: int) -> onnx.ValueInfoProto:
    """Return the description of a graph input or output for the pool with one layer's keys or values, of the shape
    [blocks, BLOCK_TOKENS, kv_heads, head_size].

    `value` is the original input or output for one sequence, and `kind` is the ONNX element type of the KV cache.
    """
    shape: list[str | int] = ["blocks", "block_tokens", num_kv_heads, head_size]
    return helper.make_tensor_value_info(PAGED + value.name, kind, shape)


def to_paged(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return nodes with PagedAttention that replace `node`, a GroupQueryAttention, whose tokens are the concatenated
    tokens of all rows, [1, tokens, …].

    Raises DoesNotFit if PagedAttention cannot compute the same.
    """
    if len(node.input) > _POSITIONS and node.input[_POSITIONS]:
        raise DoesNotFit("its attention is given positions, which paged attention counts itself")
    attributes = shared_attributes(node)
    inputs = [""] * (_BOUNDS + 1)
    for index, name in enumerate(node.input):
        if index in _INPUTS:
            inputs[_INPUTS[index]] = name
    axis, flat = f"{node.output[0]}.axis", f"{node.output[0]}.flat"
    input_nodes = [helper.make_node("Constant", [], [axis], value_ints=[0])]
    for index in range(3):
        if name := inputs[index]:
            inputs[index] = f"{node.output[0]}.{index}"
            input_nodes.append(helper.make_node("Squeeze", [name, axis], [inputs[index]]))
    inputs[_PAST] = [PAGED + name for name in inputs[_PAST]]
    inputs[_STARTS], inputs[_PASTS], inputs[_BLOCKS], inputs[_BOUNDS] = STARTS, PASTS, BLOCKS, BOUNDS
    outputs = [flat, *(PAGED + name for name in node.output[1:3])]
    paged = helper.make_node(OPERATOR, inputs, outputs, node.name, domain="com.microsoft")
    paged.attribute.extend(attributes)
    return [*input_nodes, paged, helper.make_node("Unsqueeze", [flat, axis], node.output[:1])]


def shared_attributes(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """Return those attributes of a GroupQueryAttention node that operators for the concatenated tokens of many rows
    have as well: PagedAttention and RaggedAttention.

    Raises DoesNotFit if the node has other attributes or inputs that affect its result.
    """
    used_inputs = {index for index, name in enumerate(node.input) if name}
    if _BIAS in used_inputs:
        raise DoesNotFit("its attention has a bias")
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if _SINK in used_inputs:  # implies the other kind of softmax
        attributes.pop("smooth_softmax", None)
    for name in sorted(attributes.keys() & _SAME):
        if attributes[name].i not in _SAME[name]:
            raise DoesNotFit(f"its attention has {name}={attributes[name].i}")
    if unknown := sorted(attributes.keys() - _SHARED - _WITHOUT_EFFECT - _SAME.keys()):
        raise DoesNotFit(f"its attention has {', '.join(unknown)}")
    return [attribute for name, attribute in attributes.items() if name in _SHARED]
