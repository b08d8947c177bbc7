"""Rewrites the parts of a decoder's graph that apply LoRA adapters, so that one pass can read rows (sequences) with
different adapters.

In such a graph, some large matrices have a parallel path of two small matrices, A and B, which are inputs. By default
their rank is 0, which means no adapter. `find_paths` finds these paths, and `stack_ranks` rewrites them: the path x·A·B
then takes the matrices of several adapters, concatenated along the rank, and the operator RaggedLowRank
(native/README.md) multiplies each row with the ranks of the row's own adapter.
"""

from collections.abc import Collection, Sequence

import onnx
from onnx import TensorProto, helper

from genai_server.engine.graph_description import LowRankPath
from genai_server.engine.graph_rewriting.native_attention import STARTS
from genai_server.engine.graph_rewriting.onnx_graph import replace
from genai_server.engine.graph_rewriting.packed_products import DOMAIN

# int32 [R]: the first rank of each row's adapter, and the number of its ranks, 0 for none.
RANKS, NUM_RANKS = "genai_server.ranks", "genai_server.num_ranks"


def find_paths(graph: onnx.GraphProto, optional: Collection[str]) -> tuple[LowRankPath, ...]:
    """Return the LoRA paths of a graph: for each large matrix that adapters change, the names and sizes of the inputs
    for the small matrices A and B. `optional` has the names of the graph's inputs with a default value.

    Returns an empty tuple if one of these inputs is not part of a LoRA path, so that the server does not know its
    meaning.
    """
    if not optional:
        return ()
    inputs = {value.name: value.type.tensor_type for value in graph.input if value.name in optional}
    defaults = {tensor.name: list(tensor.dims) for tensor in graph.initializer if tensor.name in optional}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def size(name: str, fixed: int) -> int:
        """Return the size of axis `fixed` of the input `name`, whose other axis is the rank; 0 if the input is no
        matrix of a LoRA path.
        """
        shape = inputs[name].shape.dim
        if inputs[name].elem_type != TensorProto.FLOAT or len(shape) != 2:
            return 0
        found = int(shape[fixed].dim_value)
        expected = [found, 0] if fixed == 0 else [0, found]
        return 0 if shape[1 - fixed].HasField("dim_value") or defaults[name] != expected else found

    found: list[LowRankPath] = []
    for node in graph.node:
        second = _only_reader(node, readers)
        if second is not None and node.input[1] in inputs and second.input[1] in inputs:
            a, b = node.input[1], second.input[1]
            found.append(LowRankPath(a, b, size(a, 0), size(b, 1)))
    named = [name for path in found for name in (path.a, path.b)]
    if sorted(named) != sorted(inputs) or not all(path.num_inputs and path.num_outputs for path in found):
        return ()
    return tuple(found) if all(len(readers[name]) == 1 for name in named) else ()


def _only_reader(node: onnx.NodeProto, readers: dict[str, list[onnx.NodeProto]]) -> onnx.NodeProto | None:
    """Return the MatMul node that reads the output of the MatMul node `node`, if no other node reads it; otherwise
    None.

    `readers` has the nodes that read a value, by the value's name.
    """
    reading = readers.get(node.output[0], []) if node.op_type == "MatMul" else []
    if len(reading) != 1 or reading[0].op_type != "MatMul" or reading[0].input[0] != node.output[0]:
        return None
    return reading[0]


def stack_ranks(graph: onnx.GraphProto, paths: Sequence[LowRankPath]) -> None:
    """Rewrite a graph, in place, so that its LoRA paths take the matrices of several adapters, concatenated along the
    rank. `paths` are those that `find_paths` has returned.

    The input for A gets the shape [ranks, num_inputs], and the one for B [ranks, num_outputs]. A is transposed so that
    another adapter can be appended to both matrices without moving the others. New inputs RANKS and NUM_RANKS say which
    ranks belong to the adapter of each row.
    """
    if not paths:
        return
    first = {path.a: path.b for path in paths}
    second = set(first.values())
    for value in graph.input:
        if value.name in first:
            value.type.tensor_type.shape.dim.reverse()
    for tensor in graph.initializer:
        if tensor.name in first:
            tensor.dims[:] = tensor.dims[::-1]
    # What a path reads, by its first product.
    path_inputs: dict[str, tuple[str, str]] = {}
    nodes = []
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in first:
            path_inputs[node.output[0]] = node.input[0], node.input[1]
        elif node.op_type == "MatMul" and node.input[1] in second:
            tokens, a = path_inputs[node.input[0]]
            inputs = [tokens, a, node.input[1], STARTS, RANKS, NUM_RANKS]
            nodes.append(helper.make_node("RaggedLowRank", inputs, node.output, node.name, domain=DOMAIN))
        else:
            nodes.append(node)
    replace(graph.node, nodes)
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT32, ["rows"]) for name in (RANKS, NUM_RANKS))
