"""Finds the constants of a graph: the initializers, and the results of nodes that read only constants."""

import math
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.stored_weights import Weights

# Values of a smaller constant are left to ONNX Runtime, which makes them when a model is loaded.
_MIN_LAYOUT = 1024
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Constants:
    """Finds out which values of a graph are constant.

    An initializer that is also an input of the graph does not count as constant, because a caller may replace it.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        inputs = {value.name for value in graph.input}
        self._tensors: dict[str, TensorProto] = {
            tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs
        }
        self._makers: dict[str, onnx.NodeProto] = {}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self._tensors[node.output[0]] = node.attribute[0].t
            elif node.input and all(self.is_constant(name) for name in node.input if name):
                self._makers.update(dict.fromkeys(node.output, node))

    def is_constant(self, name: str) -> bool:
        """Whether the value with this name is the same in every pass."""
        return name in self._tensors or name in self._makers

    def kind(self, name: str) -> int | None:
        """ONNX element type of the constant initializer with this name; None if there is none."""
        return self._tensors[name].data_type if name in self._tensors else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Dimensions of the constant initializer with this name; None if there is none."""
        return tuple(self._tensors[name].dims) if name in self._tensors else None

    def size(self, name: str) -> int | None:
        """Number of values in the constant initializer with this name; None if there is none."""
        shape = self.shape(name)
        return None if shape is None else math.prod(shape)

    def num_bytes(self, name: str) -> int:
        """Size in bytes of the initializer with this name, or of the initializer from which the constant with this name
        is computed by transposing or casting; 0 if there is neither.
        """
        source = self._source(name)
        if source is None:
            return 0
        return int(math.prod(source.dims) * helper.tensor_dtype_to_np_dtype(source.data_type).itemsize)

    def matrix(self, name: str) -> TensorProto | None:
        """Return the initializer from which the constant with this name is computed by transposing it or casting it to
        32 bits, or which it is itself; None if that is no matrix of floats.
        """
        source: TensorProto | None = self._source(name)
        if source is None or source.data_type not in FLOATS or len(source.dims) != 2:
            return None
        return source

    def matrix_shape(self, name: str) -> tuple[int, ...]:
        """Dimensions of the constant with this name, for which `matrix` must return an initializer."""
        if name in self._tensors:
            return tuple(self._tensors[name].dims)
        node = self._makers[name]
        shape = self.matrix_shape(node.input[0])
        return shape[::-1] if node.op_type == "Transpose" else shape

    def values(self, name: str, weights: Weights) -> NDArray[Any]:
        """Return the values of a constant that is an initializer or is computed from one by transposing, reshaping or
        casting.

        Values with 16 bits are returned as they are, even if the graph casts them to 32 bits.
        """
        if name in self._tensors:
            found = weights.array(name)
            return numpy_helper.to_array(self._tensors[name]) if found is None else found
        node = self._makers[name]
        values = self.values(node.input[0], weights)
        if node.op_type == "Transpose":
            return values.transpose(next((list(a.ints) for a in node.attribute if a.name == "perm"), None))
        if node.op_type == "Reshape":
            return values.reshape(_shape(self._tensors[node.input[1]]))
        return values

    def is_layout(self, node: onnx.NodeProto) -> bool:
        """Whether a node transposes or reshapes a large initializer."""
        if node.op_type not in ("Transpose", "Reshape") or node.input[0] not in self._tensors:
            return False
        if math.prod(self._tensors[node.input[0]].dims) < _MIN_LAYOUT:
            return False
        # A 0 stands for a dimension of the input.
        return node.op_type == "Transpose" or (
            node.input[1] in self._tensors and 0 not in _shape(self._tensors[node.input[1]])
        )

    def _source(self, name: str) -> TensorProto | None:
        """Return the initializer from which a constant is computed by transposing it or casting it to 32 bits, or which
        it is itself; None if there is none.
        """
        if name in self._tensors:
            return self._tensors[name]
        node = self._makers.get(name)
        if node is None or node.op_type not in ("Transpose", "Identity", "Cast"):
            return None
        source: TensorProto | None = self._source(node.input[0])
        if source is None or node.op_type != "Cast":
            return source
        kind = next(a.i for a in node.attribute if a.name == "to")
        is_widened = source.data_type in FLOATS and kind in (TensorProto.FLOAT, source.data_type)
        return source if is_widened else None


def _shape(tensor: TensorProto) -> list[int]:
    return [int(size) for size in numpy_helper.to_array(tensor)]
