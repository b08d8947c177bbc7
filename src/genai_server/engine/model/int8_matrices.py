"""Makes 8-bit matrices from a decoder's 4-bit ones, for steps of many tokens.

ONNX Runtime's 4-bit product (MatMulNBits) unpacks its weights again for every few tokens; its 8-bit product
(MatMulIntegerToFloat) does not. On x86 the latter is fastest with unsigned activations and signed weights. On one of
two machines, signed activations made it five times slower. So activations are quantized for each token at run time,
around 128. Weights have one scale for each output column.

An 8-bit matrix is rounded from the 4-bit one, because the model does not have the original weights.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from genai_server.engine.model.output_head import EIGHT_BITS

log = logging.getLogger(__name__)
# A matrix stays in 4 bits if, in the median block, the 8-bit scale is more than this share of the 4-bit scale. Rounding
# would add too large an error. Columns without outliers have about 0.08.
MAX_COARSENESS = 0.25
_FOUR_BITS = "MatMulNBits"
# Inputs of a MatMulNBits after the activations.
_WEIGHTS, _SCALES, _ZEROS, _ORDER, _BIAS = range(1, 6)
_ROWS_AT_ONCE = 512
_MAX_THREADS = 8
_ALIGNMENT = 4096  # of data that is mapped into memory
_MIN_EXTERNAL = 1024
# Constants of the graph.
_NAMES = ("axis", "inverse", "least", "one", "middle")
_AXIS, _INVERSE, _LEAST, _ONE, _MIDDLE = (f"genai_server.int8.{name}" for name in _NAMES)


def write_int8_model(source: Path, target: Path, threads: int = 1) -> int:
    """Write the graph at `source` with 8-bit matrices in place of 4-bit ones; returns how many were replaced.

    The weights' file lies next to `target`. Memory is needed for one matrix in 4 and in 8 bits, and in each of at most
    `threads` threads for two arrays of 512 of its rows in 32 bits. Raises OSError.
    """
    model = onnx.load(str(source), load_external_data=False)
    graph = model.graph
    weights = _Weights(graph, source.parent)
    nodes: list[onnx.NodeProto] = []
    activations: dict[str, tuple[str, str]] = {}
    num_matrices, dropped = 0, set[str]()
    with target.with_name(target.name + ".data").open("wb") as file:
        data = _DataFile(file, target.name + ".data")
        for node in graph.node:
            matrix = _int8_matrix(node, weights, threads) if node.op_type == _FOUR_BITS else None
            if matrix is None:
                nodes.append(node)
                continue
            num_matrices += 1
            dropped.update(node.input[_WEIGHTS:_BIAS])
            if node.input[0] not in activations:  # once for all matrices that read them
                activations[node.input[0]] = _quantized(node.input[0], nodes)
            nodes += _product(node, activations[node.input[0]], data.add(matrix))
        read = {name for node in nodes for name in node.input}
        kept = [tensor for tensor in graph.initializer if tensor.name not in dropped or tensor.name in read]
        for tensor in kept:
            weights.load(tensor)
            data.move(tensor)
        del graph.node[:], graph.initializer[:]
        graph.node.extend(nodes)
        graph.initializer.extend([*kept, *data.tensors, *_constants()])
    target.write_bytes(model.SerializeToString())
    return num_matrices


def int8_bytes(source: Path) -> int:
    """The size of a graph's 4-bit matrices in 8 bits, in bytes; 0 if it has none."""
    graph = onnx.load(str(source), load_external_data=False).graph
    sizes = [{a.name: a.i for a in node.attribute} for node in graph.node if node.op_type == _FOUR_BITS]
    return sum(size["N"] * size["K"] for size in sizes if size["bits"] == 4)


class _Weights:
    """The initializers of a graph by name, read from their file one at a time."""

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._folder = folder

    def load(self, tensor: TensorProto) -> None:
        """Load the values of a tensor into memory."""
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(self._folder))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]

    def array(self, name: str) -> NDArray[Any] | None:
        """The values under a name; None if no initializer has it."""
        if name not in self._tensors:
            return None
        tensor = TensorProto()
        tensor.CopyFrom(self._tensors[name])
        self.load(tensor)
        return numpy_helper.to_array(tensor)


class _DataFile:
    """The file of a new graph's weights; `tensors` are those that were added."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.tensors: list[TensorProto] = []
        self._file = file
        self._name = name

    def add(self, arrays: dict[str, NDArray[Any]]) -> list[str]:
        """Write arrays; returns their names."""
        for name, array in arrays.items():
            tensor = numpy_helper.from_array(array, name)
            self.move(tensor)
            self.tensors.append(tensor)
        return list(arrays)

    def move(self, tensor: TensorProto) -> None:
        """Move a tensor's values to the file, unless they are small."""
        if len(tensor.raw_data) < _MIN_EXTERNAL:
            return
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        location = {"location": self._name, "offset": self._file.tell(), "length": len(tensor.raw_data)}
        self._file.write(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in location.items():
            tensor.external_data.add(key=key, value=str(value))


def _int8_matrix(node: onnx.NodeProto, weights: _Weights, threads: int) -> dict[str, NDArray[Any]] | None:
    """The weights [inputs, outputs] and scales [outputs] for a MatMulNBits; None if it stays in 4 bits."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    optional = [*node.input, "", "", ""]
    packed, scales = weights.array(node.input[_WEIGHTS]), weights.array(node.input[_SCALES])
    zeros = weights.array(optional[_ZEROS])
    is_known = attributes["bits"] == 4 and not optional[_ORDER] and (zeros is not None) == bool(optional[_ZEROS])
    if packed is None or scales is None or not is_known or scales.dtype != np.float32:
        return None
    if zeros is not None and zeros.dtype != np.uint8:
        return None
    num_outputs, num_inputs = attributes["N"], attributes["K"]
    eight = np.empty((num_inputs, num_outputs), np.int8)
    scale = np.empty(num_outputs, np.float32)

    def convert(first: int) -> None:
        here = slice(first, min(first + _ROWS_AT_ONCE, num_outputs))
        values = _dequantized(packed, scales, zeros, attributes, here)
        scale[here] = np.maximum(np.abs(values).max(1) / 127, np.finfo(np.float32).tiny)
        values /= scale[here, None]
        eight[:, here] = np.rint(values, out=values).T

    with ThreadPoolExecutor(min(threads, _MAX_THREADS)) as pool:  # numpy computes without Python's lock
        list(pool.map(convert, range(0, num_outputs, _ROWS_AT_ONCE)))
    steps = np.abs(scales.reshape(num_outputs, -1))
    if np.mean(scale[:, None] > MAX_COARSENESS * steps) > 0.5:
        log.info("matrix %s stays in 4 bits: 8 bits with one scale for a column are too coarse", node.name)
        return None
    return {f"{node.output[0]}.int8": eight, f"{node.output[0]}.int8_scales": scale}


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


def _quantized(name: str, nodes: list[onnx.NodeProto]) -> tuple[str, str]:
    """Add nodes that quantize activations; returns the names of these and of their scales, one for each token."""
    at = f"{name}.int8"
    nodes += [
        helper.make_node("Abs", [name], [f"{at}.abs"]),
        helper.make_node("ReduceMax", [f"{at}.abs", _AXIS], [f"{at}.max"], keepdims=1),
        helper.make_node("Mul", [f"{at}.max", _INVERSE], [f"{at}.share"]),
        helper.make_node("Max", [f"{at}.share", _LEAST], [f"{at}.scale"]),
        helper.make_node("Div", [name, f"{at}.scale"], [f"{at}.scaled"]),
        helper.make_node("QuantizeLinear", [f"{at}.scaled", _ONE, _MIDDLE], [at]),
    ]
    return at, f"{at}.scale"


def _product(node: onnx.NodeProto, activations: tuple[str, str], matrix: list[str]) -> list[onnx.NodeProto]:
    """The nodes that replace a MatMulNBits."""
    (read, token_scales), (weights, scales), out = activations, matrix, node.output[0]
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    inputs = [read, weights, _ONE, scales, _MIDDLE]
    made = [
        helper.make_node(EIGHT_BITS, inputs, [f"{out}.int8_product"], node.name, domain="com.microsoft"),
        helper.make_node("Mul", [f"{out}.int8_product", token_scales], [f"{out}.int8_sum" if bias else out]),
    ]
    if bias:
        made.append(helper.make_node("Add", [f"{out}.int8_sum", bias], [out]))
    return made


def _constants() -> list[TensorProto]:
    values: dict[str, Any] = {
        _AXIS: np.array([-1], np.int64),
        _INVERSE: np.array(1 / 127, np.float32),
        _LEAST: np.array(1e-9, np.float32),
        _ONE: np.array(1, np.float32),
        _MIDDLE: np.array(128, np.uint8),
    }
    return [numpy_helper.from_array(value, name) for name, value in values.items()]
