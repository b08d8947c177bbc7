"""Replaces operators of a decoder's graph with others that ONNX Runtime computes faster on CPUs (`use_fast_operators`),
and changes a graph that computes in 16 bits to compute in 32 bits (`widen`), as the operators of genai-server-native,
this project's library for CPUs, need it.

Weight matrices keep 16 bits, and so do inputs of the graph such as the embeddings of images.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.onnx_graph import Weights, replace

_EXPERTS, _PRODUCT, _ACCURACY = "QMoE", "MatMulNBits", "accuracy_level"
_INT8_ACTIVATIONS = 4
_GATED_NORM = "GatedRMSNorm"
_GATED_NORM_DEFAULTS = {"activation": b"silu", "epsilon": 1e-5}
_FLAT = "genai_server.norm.flat"
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Places of inputs that are matrices, which are packed or looked up as they are.
_MATRICES = {
    "MatMul": (1,),
    "Gemm": (1,),
    "MatMulNBits": (1, 2, 3),
    "MoE": (2, 4, 6),
    "QMoE": (2, 3, 5, 6, 8, 9, 11, 12, 13),
    "Gather": (0,),
    "Transpose": (0,),
}
# Operators whose inputs are kept between passes: keys, values and states.
_STATEFUL_OPERATORS = {"GroupQueryAttention", "MultiHeadAttention", "LinearAttention", "CausalConvWithState"}
_WIDE, _HALF = ".wide", ".half"


def use_fast_operators(graph: onnx.GraphProto) -> None:
    """Replace operators of a graph that are slow on CPUs with faster ones, in place. Results change at most by
    rounding. Calling it again changes nothing.
    """
    _quantize_expert_activations(graph)
    _split_gated_norms(graph)


def _quantize_expert_activations(graph: onnx.GraphProto) -> None:
    """Make the mixture-of-experts layers of a graph quantize activations to 8 bits, in place, if all other quantized
    products of the graph do so.

    The model builder sets `accuracy_level` only for the other products, so the experts would compute with 32-bit
    activations. With 8-bit activations, a step of LFM2-8B-A1B takes half the time on a CPU with AVX2, for 1 row and for
    16.
    """
    levels = {_level(node) for node in graph.node if node.op_type == _PRODUCT}
    if levels != {_INT8_ACTIVATIONS}:
        return
    for node in graph.node:
        if node.op_type == _EXPERTS and _level(node) is None:
            node.attribute.append(helper.make_attribute(_ACCURACY, _INT8_ACTIVATIONS))


def _level(node: onnx.NodeProto) -> int | None:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == _ACCURACY), None)


def _split_gated_norms(graph: onnx.GraphProto) -> None:
    """Replace each gated RMS norm of a graph, in place, with separate operators for the norm, the activation and the
    product.

    The fused operator of ONNX Runtime 1.32 takes 20 times as long, which was a third of the time for a prompt of Qwen
    3.5.
    """
    if not any(node.op_type == _GATED_NORM for node in graph.node):
        return
    weights = {value.name: value for value in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = weights.get(node.input[1]) if node.op_type == _GATED_NORM else None
        if weight is not None and weight.data_type == TensorProto.FLOAT:
            nodes += _split_gated_norm(node, graph, weight.dims[0])
        else:
            nodes.append(node)
    replace(graph.node, nodes)


def _split_gated_norm(node: onnx.NodeProto, graph: onnx.GraphProto, size: int) -> list[onnx.NodeProto]:
    """Return nodes that compute the same as `node`, a gated RMS norm over groups of `size` channels. The constants that
    they need are added to `graph`.
    """
    (values, weight, gate), out = node.input[:3], node.output[0]
    attributes = _GATED_NORM_DEFAULTS | {a.name: helper.get_attribute_value(a) for a in node.attribute}
    groups = f"genai_server.norm.{size}"
    initializers = {value.name for value in graph.initializer}
    for name, shape in ((groups, [0, 0, -1, size]), (_FLAT, [0, 0, -1])):
        if name not in initializers:
            graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    if attributes["activation"] == b"sigmoid":
        activation = helper.make_node("Sigmoid", [gate], [f"{out}.gate"])
    else:  # x / (1 + exp(-x)), under one of its two names
        activation = helper.make_node("QuickGelu", [gate], [f"{out}.gate"], domain="com.microsoft", alpha=1.0)
    norm = {"axis": -1, "epsilon": attributes["epsilon"]}
    return [
        helper.make_node("Reshape", [values, groups], [f"{out}.groups"]),
        helper.make_node("SimplifiedLayerNormalization", [f"{out}.groups", weight], [f"{out}.normed"], **norm),
        helper.make_node("Reshape", [f"{out}.normed", _FLAT], [f"{out}.flat"]),
        activation,
        helper.make_node("Mul", [f"{out}.flat", f"{out}.gate"], [out], node.name),
    ]


def computes_in_16_bits(graph: onnx.GraphProto) -> bool:
    """Whether a graph computes in 16 bits, that is, one of its outputs (logits, KV cache or recurrent states) has 16
    bits.
    """
    return any(value.type.tensor_type.elem_type in _HALVES for value in graph.output)


def widen(graph: onnx.GraphProto, weights: Weights) -> None:
    """Rewrite a graph that computes in 16 bits, in place, so that it computes in 32 bits. Other graphs are not changed.

    `weights` reads the constants that are converted. Weight matrices keep 16 bits.
    """
    if not computes_in_16_bits(graph):
        return
    matrices = _matrices(graph)
    for tensor in graph.initializer:
        if tensor.data_type in _HALVES and tensor.name not in matrices:
            weights.load(tensor)
            _widen_tensor(tensor)
    nodes = _widen_inputs(graph)
    for node in graph.node:
        _widen_attributes(node)
        nodes.append(node)
        if node.op_type == "Gather" and node.input[0] in matrices:
            output = node.output[0]
            node.output[0] += _HALF
            nodes.append(helper.make_node("Cast", [node.output[0]], [output], to=TensorProto.FLOAT))
    replace(graph.node, nodes)
    for value in graph.output:
        if value.type.tensor_type.elem_type in _HALVES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    replace(graph.value_info, [])


def _widen_inputs(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Change 16-bit inputs of a graph that are KV cache or recurrent states to 32 bits, in place. Other 16-bit inputs
    keep their type: nodes read them through casts to 32 bits, which are returned and must be added to the graph.
    """
    halves = [value for value in graph.input if value.type.tensor_type.elem_type in _HALVES]
    readers: dict[str, set[str]] = {value.name: set() for value in halves}
    for node in graph.node:
        for name in readers.keys() & set(node.input):
            readers[name].add(node.op_type)
    cast = {name for name, operators in readers.items() if not operators <= _STATEFUL_OPERATORS}
    for value in halves:
        if value.name not in cast:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in graph.node:
        replace(node.input, [name + _WIDE if name in cast else name for name in node.input])
    return [helper.make_node("Cast", [name], [name + _WIDE], to=TensorProto.FLOAT) for name in sorted(cast)]


def _matrices(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the 16-bit weights of a graph that need not be converted to 32 bits for the CPU, because only
    matrix products and lookups read them, which accept weights of 16 bits. The outputs of Transpose nodes that read
    such weights are included.
    """
    halves = {tensor.name for tensor in graph.initializer if tensor.data_type in _HALVES}
    turned: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in halves:
            turned[node.output[0]] = node.input[0]
    widened = {value.name for value in [*graph.input, *graph.output]}
    for node in graph.node:
        indices = _MATRICES.get(node.op_type, ())
        widened |= {name for index, name in enumerate(node.input) if index not in indices}
    # What others read is widened, turned or not.
    widened |= {source for name, source in turned.items() if name in widened}
    matrices = halves - widened
    return matrices | {name for name, source in turned.items() if source in matrices}


def _widen_tensor(tensor: TensorProto) -> None:
    values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _widen_attributes(node: onnx.NodeProto) -> None:
    """Convert 16-bit constants in the attributes of a node to 32 bits, in place, and 16 bits as the target type of a
    Cast. Nodes in the subgraphs of branches are converted, too.
    """
    for attribute in node.attribute:
        if attribute.HasField("t") and attribute.t.data_type in _HALVES:
            _widen_tensor(attribute.t)
        elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _HALVES:
            attribute.i = TensorProto.FLOAT
        for part in attribute.g.node:
            _widen_attributes(part)
        for value in attribute.g.output:
            if value.type.tensor_type.elem_type in _HALVES:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
