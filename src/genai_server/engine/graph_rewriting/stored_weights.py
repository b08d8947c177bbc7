"""The initializers of a graph, read from the file in which they lie."""

from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data


class Weights:
    """The initializers of a graph by name, read from their file one at a time."""

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._folder = folder

    def load(self, tensor: TensorProto) -> None:
        """Load the values of a tensor into memory."""
        if uses_external_data(tensor):
            tensor.raw_data = self._external(tensor)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]

    def _external(self, tensor: TensorProto) -> bytes:
        """The values of a tensor in a file of its own, which lies in the model directory or is a link from there.

        onnx itself reads no links, neither hard nor symbolic ones, of which the caches of model hubs consist. Where
        they lead was checked with the model directory (engine/model/files.py).
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
        """The values under a name; None if no initializer has it."""
        if name not in self._tensors:
            return None
        tensor = TensorProto()
        tensor.CopyFrom(self._tensors[name])
        self.load(tensor)
        return numpy_helper.to_array(tensor)
