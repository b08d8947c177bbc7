"""Reads and edits ONNX graphs for the other modules of this package: removes nodes (`remove_unused_nodes`), finds
constants (`Constants`), and reads and stores weights (`Weights`, `DataFile`, `InlineData`).

Constants are the initializers, and the results of nodes that read only constants. Weights are read from their files one
at a time. New weights are stored in an external file, which is mapped into memory, or in the graph itself.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data, uses_external_data

# Values of a smaller constant are left to ONNX Runtime, which makes them when a model is loaded.
_MIN_LAYOUT = 1024
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def replace(field: Any, values: Iterable[Any]) -> None:
    """Replace the contents of a repeated field of a protobuf message, such as the nodes of a graph, with `values`, in
    place.
    """
    values = list(values)
    del field[:]
    field.extend(values)


def remove_unused_nodes(graph: onnx.GraphProto) -> None:
    """Remove all nodes from a graph, in place, whose results are neither outputs of the graph nor read by a remaining
    node.
    """
    wanted = {value.name for value in graph.output}
    remaining = []
    for node in reversed(graph.node):  # in a graph each node follows the nodes that it reads
        if wanted.intersection(node.output):
            remaining.append(node)
            wanted.update(node.input)
            wanted.update(name for a in node.attribute for inner in a.g.node for name in inner.input)
    replace(graph.node, remaining[::-1])


class Weights:
    """Reads the initializers (weights) of an ONNX graph by name, one at a time, so that not all of them are in memory
    at once. `folder` is the folder with the separate files in which weights are stored.
    """

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._folder = folder

    def load(self, tensor: TensorProto) -> None:
        """Read the values of a tensor from its separate file into the tensor itself, in place. Does nothing if its
        values are in the graph. Raises OSError, and ValueError if the file is too short.
        """
        if uses_external_data(tensor):
            tensor.raw_data = self._external(tensor)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]

    def _external(self, tensor: TensorProto) -> bytes:
        """Return the values of a tensor, as bytes, from the separate file in which they are stored. Raises OSError, and
        ValueError if the file is too short.

        The file is in the model directory, or linked from there. onnx itself refuses hard and symbolic links, of which
        the caches of model hubs consist; engine/model/files.py has checked where they lead.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        length = int(entries.get("length", -1))
        with (self._folder / entries["location"]).open("rb") as file:
            file.seek(int(entries.get("offset", 0)))
            values: bytes = file.read(length)
        if len(values) < length:
            raise ValueError(f"{entries['location']} ends within the tensor {tensor.name}")
        return values

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of the initializer with this name as an array; None if the graph has no
        such initializer.
        """
        if name not in self._tensors:
            return None
        tensor = TensorProto()
        tensor.CopyFrom(self._tensors[name])
        self.load(tensor)
        return numpy_helper.to_array(tensor)


_ALIGNMENT = 4096  # of data that is mapped into memory
_MIN_EXTERNAL = 1024


class DataFile:
    """Stores weights of a new ONNX graph in a separate file, which ONNX Runtime maps into memory. `file` is open for
    writing, and `name` is its name in the graph. `tensors` are the tensors that `add` has created, for the new graph.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.tensors: list[TensorProto] = []
        self._file = file
        self._name = name

    def add(self, arrays: dict[str, NDArray[Any]]) -> list[str]:
        """Write arrays to the file, and append a tensor for each to `tensors`, which refers to the file. Small arrays
        are stored in the tensor itself. `arrays` has the arrays by the names of the tensors. Returns the names.
        """
        for name, array in arrays.items():
            tensor = numpy_helper.from_array(array, name)
            self.move(tensor)
            self.tensors.append(tensor)
        return list(arrays)

    def move(self, tensor: TensorProto) -> None:
        """Write the values of a tensor to the file, and change the tensor to refer to the file. Tensors of less than
        1024 bytes are not changed.
        """
        if len(tensor.raw_data) < _MIN_EXTERNAL:
            return
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        set_external_data(tensor, self._name, self._file.tell(), len(tensor.raw_data))
        self._file.write(tensor.raw_data)
        tensor.ClearField("raw_data")


class InlineData:
    """Stores weights of a new ONNX graph in the graph itself, in place of a DataFile. `tensors` are the tensors that
    `add` has created, for the new graph.
    """

    def __init__(self) -> None:
        self.tensors: list[TensorProto] = []

    def add(self, arrays: dict[str, NDArray[Any]]) -> list[str]:
        """Append a tensor for each array to `tensors`. `arrays` has the arrays by the names of the tensors. Returns the
        names.
        """
        self.tensors += [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        return list(arrays)


class Constants:
    """Finds out which values of an ONNX graph are constant, and reads them. Constants are the initializers, and the
    results of nodes that read only constants.

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
        """Whether the value with this name in the graph is the same in every pass, because it depends on no input."""
        return name in self._tensors or name in self._makers

    def kind(self, name: str) -> int | None:
        """ONNX element type of the initializer with this name; None if the graph has no constant initializer of this
        name.
        """
        return self._tensors[name].data_type if name in self._tensors else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Dimensions of the initializer with this name; None if the graph has no constant initializer of this name."""
        return tuple(self._tensors[name].dims) if name in self._tensors else None

    def size(self, name: str) -> int | None:
        """Number of values in the initializer with this name; None if the graph has no constant initializer of this
        name.
        """
        shape = self.shape(name)
        return None if shape is None else math.prod(shape)

    def num_bytes(self, name: str) -> int:
        """Size in bytes of the initializer with this name or, if a node computes this constant from an initializer by
        transposing or casting, of that initializer; 0 if there is neither.
        """
        source = self._source(name)
        if source is None:
            return 0
        return int(math.prod(source.dims) * helper.tensor_dtype_to_np_dtype(source.data_type).itemsize)

    def matrix(self, name: str) -> TensorProto | None:
        """Return the matrix of floats with this name if it is an initializer; or, if nodes compute it from an
        initializer by transposing it or casting it to 32 bits, that initializer. Returns None for all other values.
        """
        source: TensorProto | None = self._source(name)
        if source is None or source.data_type not in FLOATS or len(source.dims) != 2:
            return None
        return source

    def matrix_shape(self, name: str) -> tuple[int, ...]:
        """Dimensions of the constant matrix with this name, after any transposing. `matrix` must return an initializer
        for it.
        """
        if name in self._tensors:
            return tuple(self._tensors[name].dims)
        node = self._makers[name]
        shape = self.matrix_shape(node.input[0])
        return shape[::-1] if node.op_type == "Transpose" else shape

    def values(self, name: str, weights: Weights) -> NDArray[Any]:
        """Return the values of the constant with this name, which is an initializer or is computed from one by
        transposing, reshaping or casting. `weights` reads the initializer.

        Values with 16 bits are returned as they are, even if the graph casts them to 32 bits.
        """
        if name in self._tensors:
            array = weights.array(name)
            return numpy_helper.to_array(self._tensors[name]) if array is None else array
        node = self._makers[name]
        values = self.values(node.input[0], weights)
        if node.op_type == "Transpose":
            return values.transpose(next((list(a.ints) for a in node.attribute if a.name == "perm"), None))
        if node.op_type == "Reshape":
            return values.reshape(_shape(self._tensors[node.input[1]]))
        return values

    def is_layout(self, node: onnx.NodeProto) -> bool:
        """Whether a node only transposes or reshapes a large initializer, so that its result can be stored in place of
        the node.
        """
        if node.op_type not in ("Transpose", "Reshape") or node.input[0] not in self._tensors:
            return False
        if math.prod(self._tensors[node.input[0]].dims) < _MIN_LAYOUT:
            return False
        # A 0 stands for a dimension of the input.
        return node.op_type == "Transpose" or (
            node.input[1] in self._tensors and 0 not in _shape(self._tensors[node.input[1]])
        )

    def _source(self, name: str) -> TensorProto | None:
        """Return the initializer with this name; or, if nodes compute the constant with this name from an initializer
        by transposing it or casting it to 32 bits, that initializer. Returns None if there is neither.
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
