"""Destinations of the weights of a rewritten graph: an external file that is mapped, or the graph itself."""

from typing import IO, Any

from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

_ALIGNMENT = 4096  # of data that is mapped into memory
_MIN_EXTERNAL = 1024


class DataFile:
    """External file for the weights of a new graph. `tensors` are the tensors that were added."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.tensors: list[TensorProto] = []
        self._file = file
        self._name = name

    def add(self, arrays: dict[str, NDArray[Any]]) -> list[str]:
        """Write arrays to the file as tensors. Returns the names of the tensors."""
        for name, array in arrays.items():
            tensor = numpy_helper.from_array(array, name)
            self.move(tensor)
            self.tensors.append(tensor)
        return list(arrays)

    def move(self, tensor: TensorProto) -> None:
        """Move the values of a tensor to the file, unless the tensor is small."""
        if len(tensor.raw_data) < _MIN_EXTERNAL:
            return
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        set_external_data(tensor, self._name, self._file.tell(), len(tensor.raw_data))
        self._file.write(tensor.raw_data)
        tensor.ClearField("raw_data")


class InlineData:
    """Weights that are stored within the graph itself."""

    def __init__(self) -> None:
        self.tensors: list[TensorProto] = []

    def add(self, arrays: dict[str, NDArray[Any]]) -> list[str]:
        """Add arrays as tensors of the graph. Returns the names of the tensors."""
        self.tensors += [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        return list(arrays)
