"""Packs weight matrices into panels, the order in which the kernels of genai-server-native, this project's library for
CPUs, read them (`pack`); and reads or makes quantized matrices (`quantized_matrix`, `rounded`).

A panel has the weights of 64 consecutive outputs of a matrix, which the kernels compute together.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Outputs of a panel.
PANEL = 64
# Inputs that have a scale in common where floats are rounded.
_ROUNDED_BLOCK = 32
# Panels that a thread packs at once.
_PANELS_AT_ONCE = 8


class QuantizedMatrix(NamedTuple):
    """A matrix [outputs, inputs] of quantized weights that have not been packed yet. A stored number stands for the
    weight scale * (number - middle) + offset.

    The middle is 8 for numbers of 4 bits, and 128 for numbers of 8 bits. Each block of `block` inputs of an output has
    its own scale and offset; `offsets` is None if all are 0.
    """

    # Unsigned, uint8 [outputs, blocks * block].
    weights: NDArray[np.uint8]
    # float32 [outputs, blocks].
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None
    bits: int
    num_inputs: int
    block: int


class FloatMatrix(NamedTuple):
    """A matrix [outputs, inputs] of weights that are floats of 32 or 16 bits and have not been packed yet."""

    # float32, float16 or bfloat16 [outputs, inputs].
    weights: NDArray[Any]


Matrix = QuantizedMatrix | FloatMatrix


class PackedWeights(NamedTuple):
    """The weights of one or several matrices in panels of 64 outputs, with their scales and offsets, as the kernels of
    genai-server-native read them. Each matrix is padded with zeros to whole panels. `pack` and `several` create it.
    """

    # uint8, [panels, inputs / 8, 64, 4] with 4 bits and [panels, inputs / 4, 64, 4] with 8; or floats of 32 or 16 bits,
    # [panels, inputs, 64].
    weights: NDArray[Any]
    # float32 [panels, blocks, 64]; None for floats.
    scales: NDArray[np.float32] | None
    # The number that is added to each weight of a block, float32 [panels, blocks, 64]; None if nothing is added.
    offsets: NDArray[np.float32] | None


def pack(matrix: Matrix) -> PackedWeights:
    """Return the weights of a matrix in panels of 64 outputs, as the kernels of genai-server-native read them."""
    if isinstance(matrix, FloatMatrix):
        return PackedWeights(by_panel(matrix.weights), None, None)
    num_outputs, num_padded = matrix.weights.shape
    panels, step = -(-num_outputs // PANEL), 32 // matrix.bits
    packed = np.empty((panels, num_padded // step, PANEL, 4), np.uint8)

    def pack_panels(first: int) -> None:
        last = min(first + _PANELS_AT_ONCE, panels)
        rows = matrix.weights[first * PANEL : last * PANEL]
        if len(rows) < (last - first) * PANEL:
            missing = (last - first) * PANEL - len(rows)
            rows = np.concatenate([rows, np.full((missing, num_padded), 1 << (matrix.bits - 1), np.uint8)])
        steps = rows.reshape(last - first, PANEL, num_padded // step, step).transpose(0, 2, 1, 3)
        packed[first:last] = steps[..., :4] | steps[..., 4:] << 4 if matrix.bits == 4 else steps

    with ThreadPoolExecutor(2) as pool:  # numpy computes without Python's lock
        list(pool.map(pack_panels, range(0, panels, _PANELS_AT_ONCE)))
    return PackedWeights(packed, by_panel(matrix.scales), None if matrix.offsets is None else by_panel(matrix.offsets))


def by_panel(values: NDArray[Any]) -> NDArray[Any]:
    """Return `values` [outputs, blocks], such as scales, in panels of 64 outputs: [panels, blocks, 64]. The last panel
    is padded with zeros.
    """
    num_outputs, blocks = values.shape
    panels = -(-num_outputs // PANEL)
    packed = np.empty((panels, blocks, PANEL), values.dtype)
    num_whole = num_outputs // PANEL
    packed[:num_whole] = values[: num_whole * PANEL].reshape(num_whole, PANEL, blocks).transpose(0, 2, 1)
    if num_whole < panels:
        packed[num_whole] = 0
        packed[num_whole, :, : num_outputs - num_whole * PANEL] = values[num_whole * PANEL :].T
    return packed


def quantized_matrix(
    rows: NDArray[np.uint8],
    scales: NDArray[Any],
    zeros: NDArray[Any] | None,
    bits: int,
    num_inputs: int,
    block: int,
) -> QuantizedMatrix:
    """Return a QuantizedMatrix with the quantized weights of a MatMulNBits node of ONNX Runtime, or of one expert of a
    QMoE node.

    `rows` [outputs, bytes] has numbers of `bits` bits (2, 4 or 8), and `num_inputs` of them are weights of an output.
    `scales` [outputs, blocks] has a scale for each `block` inputs, which is a multiple of 16. `zeros` has the zero
    points of the blocks, as floats or as integers that are packed like the rows; None stands for the middle of the
    range. Numbers of 2 bits are converted to 4 bits.
    """
    num_outputs, blocks = scales.shape
    weights, middle = unpacked(rows, bits), 1 << (bits - 1)
    if weights.shape[1] < blocks * block:
        weights = np.pad(weights, ((0, 0), (0, blocks * block - weights.shape[1])), constant_values=middle)
    scales, offsets = np.ascontiguousarray(scales, np.float32), None
    if zeros is not None:
        points = zeros.reshape(num_outputs, -1)
        points = (unpacked(points, bits) if points.dtype == np.uint8 else points)[:, :blocks].astype(np.float32)
        if (points != middle).any():
            offsets = (scales * (middle - points)).astype(np.float32)
    if bits == 2:
        weights, bits = weights + np.uint8(8 - middle), 4
    return QuantizedMatrix(weights, scales, offsets, bits, num_inputs, block)


def rounded(weights: NDArray[Any]) -> QuantizedMatrix:
    """Return a QuantizedMatrix with `weights`, floats [outputs, inputs], rounded to 8 bits. Each block of 32 inputs of
    an output has its own scale.
    """
    num_outputs, num_inputs = weights.shape
    padded = np.pad(weights.astype(np.float32, copy=False), ((0, 0), (0, -num_inputs % _ROUNDED_BLOCK)))
    blocks = padded.reshape(num_outputs, -1, _ROUNDED_BLOCK)
    scales = np.maximum(np.abs(blocks).max(2) / 127, np.finfo(np.float32).tiny)
    steps = np.rint(blocks / scales[:, :, np.newaxis]) + 128
    return QuantizedMatrix(steps.astype(np.uint8).reshape(padded.shape), scales, None, 8, num_inputs, _ROUNDED_BLOCK)


def unpacked(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the numbers of `bits` bits (2, 4 or 8) that are stored in the bytes `rows` [rows, bytes], one number in
    each byte, as [rows, bytes * 8 / bits]. The lowest bits of a stored byte are its first number.
    """
    if bits == 8:
        return rows
    per_byte = 8 // bits
    values = np.empty((len(rows), per_byte * rows.shape[1]), np.uint8)
    for offset in range(per_byte):
        values[:, offset::per_byte] = rows >> bits * offset & ((1 << bits) - 1)
    return values


def alternating(gate: Matrix, values: Matrix) -> Matrix:
    """Return one matrix with the outputs of `gate` and of `values`, in which groups of 64 outputs of both alternate,
    beginning with the gate. A kernel can then compute a gated layer in one product.

    Both matrices must have the same shape, data type and quantization, and a multiple of 64 outputs.
    """
    if isinstance(gate, FloatMatrix) or isinstance(values, FloatMatrix):
        return FloatMatrix(alternate(gate.weights, values.weights))
    offsets = None
    if gate.offsets is not None or values.offsets is not None:
        both = (np.zeros_like(matrix.scales) if matrix.offsets is None else matrix.offsets for matrix in (gate, values))
        offsets = alternate(*both)
    return gate._replace(
        weights=alternate(gate.weights, values.weights),
        scales=alternate(gate.scales, values.scales),
        offsets=offsets,
    )


def has_same_format(first: Matrix, second: Matrix) -> bool:
    """Whether two matrices have the same shape, data type and quantization, so that they can be combined in one."""
    if first.weights.shape != second.weights.shape or first.weights.dtype != second.weights.dtype:
        return False
    if isinstance(first, FloatMatrix) or isinstance(second, FloatMatrix):
        return type(first) is type(second)
    return first[3:] == second[3:]


def alternate(gate: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return one array with the outputs of `gate` and of `values`, in which groups of 64 outputs of both alternate,
    beginning with the gate. Both arrays are [outputs, …], of the same shape, with a multiple of 64 outputs.
    """
    panels = [array.reshape(-1, PANEL, *array.shape[1:]) for array in (gate, values)]
    return np.stack(panels, 1).reshape(-1, *gate.shape[1:])


def padded_to_panels(matrix: Matrix) -> Matrix:
    """Return the matrix padded to a multiple of 64 outputs, the size of a panel. The weights of the added outputs are
    zero.
    """
    missing = -len(matrix.weights) % PANEL
    if not missing:
        return matrix

    def longer(values: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        return np.concatenate([values, np.full((missing, values.shape[1]), fill, values.dtype)])

    if isinstance(matrix, FloatMatrix):
        return FloatMatrix(longer(matrix.weights))
    return matrix._replace(
        weights=longer(matrix.weights, 1 << (matrix.bits - 1)),
        scales=longer(matrix.scales),
        offsets=None if matrix.offsets is None else longer(matrix.offsets),
    )


def several(matrices: Sequence[Matrix]) -> PackedWeights:
    """Pack several matrices of the same shape, data type and quantization, such as those of the experts of a layer.
    Returns their panels, concatenated.
    """
    packed = [pack(matrix) for matrix in matrices]
    scales = [part.scales for part in packed if part.scales is not None]
    offsets: NDArray[np.float32] | None = None
    if any(part.offsets is not None for part in packed):
        offsets = np.concatenate(
            [np.zeros_like(s) if p.offsets is None else p.offsets for p, s in zip(packed, scales, strict=True)]
        )
    weights = np.concatenate([part.weights for part in packed])
    return PackedWeights(weights, np.concatenate(scales) if scales else None, offsets)
