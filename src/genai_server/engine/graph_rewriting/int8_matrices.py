"""Makes 8-bit matrices from 4-bit ones, for steps of many tokens, and from those in 32 bits, for images.

ONNX Runtime's 4-bit product (MatMulNBits) unpacks its weights again for every few tokens; its 8-bit product
(MatMulIntegerToFloat) does not. On x86 the latter is fastest with unsigned activations and signed weights. On one of
two machines, signed activations made it five times slower. So activations are quantized for each token at run time,
around 128. Weights have one scale for each output column.

An 8-bit matrix is rounded from the 4-bit one, because the model does not have the original weights.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from genai_server.engine.graph_rewriting.data_file import DataFile
from genai_server.engine.graph_rewriting.matrices import Matrix, Weights, matrix_of, matrix_sizes
from genai_server.engine.graph_rewriting.output_head import EIGHT_BITS

log = logging.getLogger(__name__)
# A matrix stays as it is if, in the median block, the 8-bit scale is more than this share of the 4-bit scale. Rounding
# would add too large an error. Columns without outliers have about 0.08.
MAX_COARSENESS = 0.25
_ROWS_AT_ONCE = 512
_MAX_THREADS = 8
# Constants of the graph.
_NAMES = ("axis", "inverse", "least", "one", "middle")
_AXIS, _INVERSE, _LEAST, _ONE, _MIDDLE = (f"genai_server.int8.{name}" for name in _NAMES)


def write_int8_model(source: Path, target: Path, threads: int = 1, *, floats: bool = False) -> int:
    """Write the graph at `source` with 8-bit matrices in place of 4-bit ones; returns how many were replaced.

    With `floats` this includes large matrices in 32 bits. The weights' file lies next to `target`. Memory is needed for
    one matrix before and after, and in each of at most `threads` threads for two arrays of 512 of its rows in 32 bits.
    Raises OSError.
    """
    model = onnx.load(str(source), load_external_data=False)
    graph = model.graph
    weights = Weights(graph, source.parent)
    nodes: list[onnx.NodeProto] = []
    activations: dict[str, tuple[str, str]] = {}
    num_matrices, dropped = 0, set[str]()
    with target.with_name(target.name + ".data").open("wb") as file:
        data = DataFile(file, target.name + ".data")
        for node in graph.node:
            matrix = matrix_of(node, weights, floats=floats)
            rounded = None if matrix is None else _rounded(node, matrix, threads)
            if matrix is None or rounded is None:
                nodes.append(node)
                continue
            num_matrices += 1
            dropped.update(matrix.tensors)
            if node.input[0] not in activations:  # once for all matrices that read them
                activations[node.input[0]] = _quantized(node.input[0], nodes)
            nodes += _product(node, activations[node.input[0]], data.add(rounded), matrix.bias)
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


def int8_bytes(source: Path, *, floats: bool = False) -> int:
    """The size of a graph's 4-bit matrices in 8 bits, in bytes, and with `floats` of large ones of 32 and 16 bits, too.

    0 if it has none.
    """
    return sum(matrix_sizes(onnx.load(str(source), load_external_data=False).graph, floats=floats))


def _rounded(node: onnx.NodeProto, matrix: Matrix, threads: int) -> dict[str, NDArray[Any]] | None:
    """The weights [inputs, outputs] and scales [outputs] in 8 bits; None if they would be too coarse."""
    eight = np.empty((matrix.num_inputs, matrix.num_outputs), np.int8)
    scale, coarse = np.empty(matrix.num_outputs, np.float32), np.empty(matrix.num_outputs)

    def convert(first: int) -> None:
        here = slice(first, min(first + _ROWS_AT_ONCE, matrix.num_outputs))
        values, steps = matrix.rows(here)
        scale[here] = np.maximum(np.abs(values).max(1) / 127, np.finfo(np.float32).tiny)
        coarse[here] = np.mean(scale[here, None] > MAX_COARSENESS * steps, axis=1)
        values /= scale[here, None]
        eight[:, here] = np.rint(values, out=values).T

    with ThreadPoolExecutor(min(threads, _MAX_THREADS)) as pool:  # numpy computes without Python's lock
        list(pool.map(convert, range(0, matrix.num_outputs, _ROWS_AT_ONCE)))
    if coarse.mean() > 0.5:
        log.info("matrix %s stays as it is: 8 bits with one scale for a column are too coarse", node.name)
        return None
    return {f"{node.output[0]}.int8": eight, f"{node.output[0]}.int8_scales": scale}


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


def _product(node: onnx.NodeProto, activations: tuple[str, str], matrix: list[str], bias: str) -> list[onnx.NodeProto]:
    """The nodes that replace a product."""
    (read, token_scales), (weights, scales), out = activations, matrix, node.output[0]
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
