"""Reads the initializers of a graph from the files in which they are stored."""

from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data


class Weights:
    """Initializers of a graph by name, read from their files one at a time."""

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._folder = folder

    def load(self, tensor: TensorProto) -> None:
        """Load the values of a tensor from its external file into the tensor."""
        if uses_external_data(tensor):
            tensor.raw_data = self._external(tensor)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]

    def _external(self, tensor: TensorProto) -> bytes:
        """Values of a tensor that are stored in an external file.

        The file lies in the model directory, or is a link from there. onnx itself refuses links, neither hard nor
        symbolic, but the caches of model hubs consist of links. Their targets were checked with the model directory
        (engine/model/files.py).
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
        """Values of the initializer with this name; None if there is none."""
        if name not in self._tensors:
            return None
        tensor = TensorProto()
        tensor.CopyFrom(self._tensors[name])
        self.load(tensor)
        return numpy_helper.to_array(tensor)
