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
    """Tells which values of a graph are constant.

    An initializer that is also an input of the graph is not constant, because a caller may replace it.
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
        """Whether the value of this name is the same in each pass."""
        return name in self._tensors or name in self._makers

    def kind(self, name: str) -> int | None:
        """ONNX element type of an initializer; None if no initializer has this name."""
        return self._tensors[name].data_type if name in self._tensors else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Dimensions of an initializer; None if no initializer has this name."""
        return tuple(self._tensors[name].dims) if name in self._tensors else None

    def size(self, name: str) -> int | None:
        """Number of values of an initializer; None if no initializer has this name."""
        shape = self.shape(name)
        return None if shape is None else math.prod(shape)

    def num_bytes(self, name: str) -> int:
        """Bytes of the initializer that a constant is, or from which the constant is made; 0 if there is none.

        Only constants that are made by transposing or casting count as made from an initializer.
        """
        source = self._source(name)
        if source is None:
            return 0
        return int(math.prod(source.dims) * helper.tensor_dtype_to_np_dtype(source.data_type).itemsize)

    def matrix(self, name: str) -> TensorProto | None:
        """Initializer from which a constant matrix is made by transposing it or casting it to 32 bits; else None.

        Only initializers of floats with two dimensions are returned.
        """
        source: TensorProto | None = self._source(name)
        if source is None or source.data_type not in FLOATS or len(source.dims) != 2:
            return None
        return source

    def matrix_shape(self, name: str) -> tuple[int, ...]:
        """Dimensions of a constant for which `matrix` returned an initializer."""
        if name in self._tensors:
            return tuple(self._tensors[name].dims)
        node = self._makers[name]
        shape = self.matrix_shape(node.input[0])
        return shape[::-1] if node.op_type == "Transpose" else shape

    def values(self, name: str, weights: Weights) -> NDArray[Any]:
        """Values of a constant that nodes make from an initializer by transposing, reshaping or casting.

        A cast from 16 to 32 bits is left out: such values remain in 16 bits.
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
        """Initializer from which a constant is made by transposing it or casting it to 32 bits; else None."""
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
