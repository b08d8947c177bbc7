"""Reads the weights of a graph from their files, and stores the weights of a rewritten graph.

New weights are stored in an external file, which is mapped into memory, or in the graph itself.
"""

from pathlib import Path
from typing import IO, Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data, uses_external_data


class Weights:
    """The initializers of a graph by name, which are read from their files one at a time."""

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._folder = folder

    def load(self, tensor: TensorProto) -> None:
        """Read the values of a tensor from its external file, if it has one, into the tensor itself."""
        if uses_external_data(tensor):
            tensor.raw_data = self._external(tensor)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]

    def _external(self, tensor: TensorProto) -> bytes:
        """Return the values of a tensor from its external file.

        The file is in the model directory, or linked from there. onnx itself refuses hard and symbolic links, of which
        the caches of model hubs consist; engine/model/files.py has checked where they lead.
        """
        given = {entry.key: entry.value for entry in tensor.external_data}
        length = int(given.get("length", -1))
        with (self._folder / given["location"]).open("rb") as file:
            file.seek(int(given.get("offset", 0)))
            values: bytes = file.read(length)
        if len(values) < length:
            raise ValueError(f"{given['location']} ends within the tensor {tensor.name}")
        return values

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of the initializer with this name; None if there is none."""
        if name not in self._tensors:
            return None
        tensor = TensorProto()
        tensor.CopyFrom(self._tensors[name])
        self.load(tensor)
        return numpy_helper.to_array(tensor)


_ALIGNMENT = 4096  # of data that is mapped into memory
_MIN_EXTERNAL = 1024


class DataFile:
    """An external file with weights of a new graph. `tensors` are the tensors that `add` has created."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.tensors: list[TensorProto] = []
        self._file = file
        self._name = name

    def add(self, arrays: dict[str, NDArray[Any]]) -> list[str]:
        """Write arrays to the file, as tensors with the given names. Returns the names."""
        for name, array in arrays.items():
            tensor = numpy_helper.from_array(array, name)
            self.move(tensor)
            self.tensors.append(tensor)
        return list(arrays)

    def move(self, tensor: TensorProto) -> None:
        """Write the values of a tensor to the file, to which the tensor then refers. Small tensors do not change."""
        if len(tensor.raw_data) < _MIN_EXTERNAL:
            return
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        set_external_data(tensor, self._name, self._file.tell(), len(tensor.raw_data))
        self._file.write(tensor.raw_data)
        tensor.ClearField("raw_data")


class InlineData:
    """Weights of a new graph that are stored in the graph itself. `tensors` are the tensors that `add` has created."""

    def __init__(self) -> None:
        self.tensors: list[TensorProto] = []

    def add(self, arrays: dict[str, NDArray[Any]]) -> list[str]:
        """Add arrays as tensors with the given names. Returns the names."""
        self.tensors += [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        return list(arrays)
