"""The constant matrices of a graph: those of MatMulNBits in 4 bits, and those of MatMul and Gemm in 32 bits."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

_FOUR_BITS = "MatMulNBits"
# Inputs of a MatMulNBits after the activations.
_WEIGHTS, _SCALES, _ZEROS, _ORDER, _BIAS = range(1, 6)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
# A smaller matrix in 32 bits is left alone: it costs little, and may multiply something other than activations.
_MIN_VALUES = 256 * 1024
# The weights that would share a scale in 4 bits, and the largest magnitude there in steps.
_BLOCK, _LARGEST = 32, 7.5


class Matrix(NamedTuple):
    """The matrix of a node, which multiplies the node's first input."""

    num_inputs: int
    num_outputs: int
    # For a range of outputs: the weights [outputs, inputs] in 32 bits, and the steps [outputs, blocks] by which they
    # differ in 4 bits.
    rows: Callable[[slice], tuple[NDArray[np.float32], NDArray[np.float32]]]
    # Names of its tensors, and of the node's bias; empty without one.
    tensors: list[str]
    bias: str


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

    def is_large_matrix(self, name: str) -> bool:
        """Whether an initializer in 32 bits has two dimensions and many values."""
        tensor = self._tensors.get(name)
        return tensor is not None and tensor.data_type == TensorProto.FLOAT and _is_large_matrix(tensor)


def matrix_of(node: onnx.NodeProto, weights: Weights, *, floats: bool) -> Matrix | None:
    """A node's matrix in 4 bits, or with `floats` also in 32; None for other nodes and unknown layouts."""
    if node.op_type == _FOUR_BITS:
        return _four_bit_matrix(node, weights)
    if floats and node.op_type in ("MatMul", "Gemm") and weights.is_large_matrix(node.input[1]):
        return _float_matrix(node, weights)
    return None


def matrix_sizes(graph: onnx.GraphProto, *, floats: bool) -> Iterator[int]:
    """The number of values of each matrix in 4 bits, or with `floats` also of each table in 32 and 16."""
    for node in graph.node:
        if node.op_type == _FOUR_BITS:
            sizes = {a.name: a.i for a in node.attribute}
            if sizes["bits"] == 4:
                yield sizes["N"] * sizes["K"]
    if floats:
        for tensor in graph.initializer:
            if tensor.data_type in _FLOATS and _is_large_matrix(tensor):
                yield tensor.dims[0] * tensor.dims[1]


def _is_large_matrix(tensor: TensorProto) -> bool:
    return len(tensor.dims) == 2 and tensor.dims[0] * tensor.dims[1] >= _MIN_VALUES


def _float_matrix(node: onnx.NodeProto, weights: Weights) -> Matrix | None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    is_plain = attributes.get("alpha", 1) == attributes.get("beta", 1) == 1 and not attributes.get("transA", 0)
    values = weights.array(node.input[1])
    if values is None or not is_plain:
        return None
    by_output = values if attributes.get("transB", 0) else values.T
    num_outputs, num_inputs = by_output.shape
    starts = np.arange(0, num_inputs, _BLOCK)

    def rows(here: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        found = np.array(by_output[here], np.float32, order="C")
        return found, (np.maximum.reduceat(np.abs(found), starts, axis=1) / _LARGEST).astype(np.float32)

    return Matrix(num_inputs, num_outputs, rows, [node.input[1]], node.input[2] if len(node.input) > 2 else "")


def _four_bit_matrix(node: onnx.NodeProto, weights: Weights) -> Matrix | None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [*node.input, "", "", ""]
    packed, scales = weights.array(inputs[_WEIGHTS]), weights.array(inputs[_SCALES])
    zeros = weights.array(inputs[_ZEROS])
    is_known = attributes["bits"] == 4 and not inputs[_ORDER] and (zeros is not None) == bool(inputs[_ZEROS])
    if packed is None or scales is None or not is_known or scales.dtype != np.float32:
        return None
    if zeros is not None and zeros.dtype != np.uint8:
        return None
    num_outputs, num_inputs = attributes["N"], attributes["K"]
    steps = np.abs(scales.reshape(num_outputs, -1))

    def rows(here: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return _dequantized(packed, scales, zeros, attributes, here), steps[here]

    return Matrix(num_inputs, num_outputs, rows, list(node.input[_WEIGHTS:_BIAS]), inputs[_BIAS])


def _dequantized(
    packed: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any] | None, attributes: dict[str, int], here: slice
) -> NDArray[np.float32]:
    """Returns the weights [outputs, inputs] of a range of a MatMulNBits's outputs.

    Layout of com.microsoft.MatMulNBits: a byte has two weights, the first in its lower half. Zero points are packed the
    same way, and each output's begin a new byte.
    """
    num_outputs, num_inputs, block = attributes["N"], attributes["K"], attributes["block_size"]
    blocks = -(-num_inputs // block)
    pairs = packed.reshape(num_outputs, blocks, block // 2)[here]
    values = np.empty((*pairs.shape[:2], block), np.float32)
    values[..., 0::2], values[..., 1::2] = pairs & 15, pairs >> 4
    if zeros is None:
        values -= 8
    else:
        rows = zeros.reshape(num_outputs, -1)[here]
        values -= np.stack([rows & 15, rows >> 4], -1).reshape(len(rows), -1)[:, :blocks, None]
    values *= scales.reshape(num_outputs, blocks, 1)[here]
    return values.reshape(len(values), -1)[:, :num_inputs]
