"""Rewrites a decoder's graph that computes in 16 bits so that it computes in 32, as genai-server-native does on CPUs.

Weight matrices keep 16 bits, and so do inputs of the graph such as the embeddings of images.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.nodes import replace
from genai_server.engine.graph_rewriting.stored_weights import Weights

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
_KEEPING = {"GroupQueryAttention", "MultiHeadAttention", "LinearAttention", "CausalConvWithState"}
_WIDE, _HALF = ".wide", ".half"


def computes_in_half(graph: onnx.GraphProto) -> bool:
    """Whether the logits, the KV cache or the recurrent states of a graph have 16 bits."""
    return any(value.type.tensor_type.elem_type in _HALVES for value in graph.output)


def widen(graph: onnx.GraphProto, weights: Weights) -> None:
    """Rewrite a graph, in place, so that it computes in 32 bits. `weights` reads the constants that are converted."""
    if not computes_in_half(graph):
        return
    kept = _matrices(graph)
    for tensor in graph.initializer:
        if tensor.data_type in _HALVES and tensor.name not in kept:
            weights.load(tensor)
            _widen_tensor(tensor)
    nodes = _widen_inputs(graph)
    for node in graph.node:
        _widen_attributes(node)
        nodes.append(node)
        if node.op_type == "Gather" and node.input[0] in kept:
            found = node.output[0]
            node.output[0] += _HALF
            nodes.append(helper.make_node("Cast", [node.output[0]], [found], to=TensorProto.FLOAT))
    replace(graph.node, nodes)
    for value in graph.output:
        if value.type.tensor_type.elem_type in _HALVES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    replace(graph.value_info, [])


def _widen_inputs(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Change those inputs that are KV cache or states to 32 bits. Returns nodes that cast the other 16-bit inputs."""
    halves = [value for value in graph.input if value.type.tensor_type.elem_type in _HALVES]
    readers: dict[str, set[str]] = {value.name: set() for value in halves}
    for node in graph.node:
        for name in readers.keys() & set(node.input):
            readers[name].add(node.op_type)
    cast = {name for name, operators in readers.items() if not operators <= _KEEPING}
    for value in halves:
        if value.name not in cast:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in graph.node:
        replace(node.input, [name + _WIDE if name in cast else name for name in node.input])
    return [helper.make_node("Cast", [name], [name + _WIDE], to=TensorProto.FLOAT) for name in sorted(cast)]


def _matrices(graph: onnx.GraphProto) -> set[str]:
    """Return the names of those 16-bit initializers, and of results of transposing them, that can keep 16 bits.

    Only matrix products and lookups, which accept weights of 16 bits, read these values.
    """
    halves = {tensor.name for tensor in graph.initializer if tensor.data_type in _HALVES}
    turned: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in halves:
            turned[node.output[0]] = node.input[0]
    others = {value.name for value in [*graph.input, *graph.output]}
    for node in graph.node:
        indices = _MATRICES.get(node.op_type, ())
        others |= {name for index, name in enumerate(node.input) if index not in indices}
    # What others read is widened, turned or not.
    others |= {source for name, source in turned.items() if name in others}
    kept = halves - others
    return kept | {name for name, source in turned.items() if source in kept}


def _widen_tensor(tensor: TensorProto) -> None:
    values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _widen_attributes(node: onnx.NodeProto) -> None:
    """Convert the constants in a node's attributes to 32 bits, and the target type of a Cast.

    Nodes in the subgraphs of branches are converted, too.
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
