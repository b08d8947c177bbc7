"""Converts quantized tensors of a GGUF file to the form of ONNX Runtime's MatMulNBits without changing any weight.

Quantized tensors consist of blocks of consecutive weights in a row. Each weight is stored as an integer, its code, and
equals `scale * (code - middle) + offset` with the block's scale and offset. The middle is half of the codes' range: 8
for codes of 4 bits, 128 for codes of 8. GGUF types of 2, 3 and 4 bits get codes of 4 bits, other types codes of 8.
Offsets become fractional zero points, which ONNX Runtime supports with 4 bits only, so Q5_1 and Q5_K cannot be
converted. This module imports nothing but numpy, because build_graph.py uses it in an environment that may lack this
package.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# numpy's types make other integers of operations with bytes.
Bytes = NDArray[Any]
Floats = NDArray[Any]
# The numbers that codes of IQ4_NL and IQ4_XS stand for, and those of MXFP4 in halves.
_NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


class Blocks(NamedTuple):
    """A quantized matrix, or some of its rows, in the form that ONNX Runtime's operator MatMulNBits needs. Its weights
    are stored in blocks of consecutive weights of a row; `read` and `eight_bits` create it.

    A weight equals `scale * (code - middle) + offset` with the block's scale and offset and the weight's code, a number
    of 4 or 8 bits. The middle is 8 or 128.
    """

    # The codes [rows, columns], one in each byte.
    codes: Bytes
    # The scales [rows, blocks].
    scales: Floats
    # The offsets [rows, blocks]; None if all are 0.
    offsets: Floats | None
    bits: int

    @property
    def block(self) -> int:
        """The number of weights in a block."""
        return int(self.codes.shape[1] // self.scales.shape[1])

    def values(self) -> Floats:
        """Return the weights as 32-bit floats, [rows, columns]."""
        codes = self.codes.reshape(*self.scales.shape, -1).astype(np.float32) - (1 << (self.bits - 1))
        values = codes * self.scales[..., None]
        if self.offsets is not None:
            values += self.offsets[..., None]
        return values.reshape(self.codes.shape)

    def packed(self) -> Bytes:
        """Return the codes as bytes, [rows, bytes]. A byte has one 8-bit code or two 4-bit codes, the first in the
        lower half.
        """
        return self.codes if self.bits == 8 else self.codes[:, ::2] | self.codes[:, 1::2] << 4

    def zero_points(self) -> Floats | None:
        """Return the zero points, [rows, blocks], with which `weight = scale * (code - zero point)`; None if there are
        no offsets, so that every zero point is the middle of the codes' range.
        """
        if self.offsets is None:
            return None
        ratios = np.divide(self.offsets, self.scales, out=np.zeros_like(self.scales), where=self.scales != 0)
        return (1 << (self.bits - 1)) - ratios


def concatenated(parts: list[Blocks]) -> Blocks:
    """Return a matrix that has the rows of all matrices in `parts`, in this order. All must have the same number of
    bits and the same block size.
    """
    offsets = None
    if any(part.offsets is not None for part in parts):
        offsets = np.concatenate([np.zeros_like(p.scales) if p.offsets is None else p.offsets for p in parts])
    codes, scales = (np.concatenate(arrays) for arrays in ([p.codes for p in parts], [p.scales for p in parts]))
    return Blocks(codes, scales, offsets, parts[0].bits)


def form(kind: str) -> tuple[int, int] | None:
    """Return in which form this module converts tensors of the GGUF type `kind`, such as Q4_K: the number of bits of a
    weight and the number of weights in a block. Returns None for types that cannot be converted.
    """
    reader = _READERS.get(kind)
    return None if reader is None else reader.form


def read(kind: str, rows: Bytes) -> Blocks:
    """Convert rows of a GGUF tensor, given as bytes [rows, bytes], to blocks without changing any weight. `kind` is the
    tensor's GGUF type, such as Q4_K, for which `form` must return a value.
    """
    reader = _READERS[kind]
    blocks = np.ascontiguousarray(rows).reshape(-1, reader.num_bytes)
    codes, scales, offsets = reader.read(blocks)
    bits, block = reader.form
    codes, scales = codes.reshape(len(rows), -1), scales.reshape(len(rows), -1)
    if offsets is not None:
        offsets = offsets.reshape(len(rows), -1)
        is_flat = scales == 0
        if is_flat.any():  # then all weights of the block are its offset, which becomes the scale of equal codes
            codes = np.where(np.repeat(is_flat, block, axis=1), np.uint8((1 << (bits - 1)) + 1), codes)
            scales, offsets = np.where(is_flat, offsets, scales), np.where(is_flat, np.float32(0), offsets)
    return Blocks(codes, scales, offsets, bits)


def eight_bits(values: Floats, block: int = 32) -> Blocks:
    """Quantize weights, [rows, columns], to codes of 8 bits, as the GGUF type Q8_0 does. `block` is the block size,
    which divides the number of columns.
    """
    parts = values.reshape(len(values), -1, block)
    scales = np.abs(parts).max(-1) / np.float32(127)
    steps = np.divide(parts, scales[..., None], out=np.zeros_like(parts), where=scales[..., None] != 0)
    codes = (np.rint(steps) + 128).astype(np.uint8).reshape(values.shape)
    return Blocks(codes, scales.astype(np.float32), None, 8)


class _Reader(NamedTuple):
    """How the blocks of one GGUF type are converted: their size in bytes, the bits and block size of the result, and a
    function that returns the codes, scales and offsets of blocks.
    """

    # Size of a block in the file.
    num_bytes: int
    form: tuple[int, int]
    read: Callable[[Bytes], tuple[NDArray[Any], Floats, Floats | None]]


def _halves(blocks: Bytes, start: int) -> Floats:
    """Return the 16-bit float that begins at byte `start` of each block, as 32-bit floats [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _fields(blocks: Bytes, group: int, bits: int) -> Bytes:
    """Split the bytes of each block into unsigned numbers of `bits` bits, [blocks, numbers].

    Each group of `group` bytes gives the lowest bits of all its bytes first, then the next higher bits of all its
    bytes, and so on.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    fields = blocks.reshape(len(blocks), -1, 1, group) >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(blocks), -1)


def _bits_of_words(blocks: Bytes) -> Bytes:
    """Return the single bits (0 or 1) of each block's bytes, the lowest bit of a byte first: [blocks, bits]."""
    return np.unpackbits(blocks, axis=1, bitorder="little")


def _q4_0(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    return _fields(blocks[:, 2:], 16, 4), _halves(blocks, 0), None


def _q4_1(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    return _with_minimum(_fields(blocks[:, 4:], 16, 4), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    codes = _fields(blocks[:, 6:], 16, 4) | _bits_of_words(blocks[:, 2:6]) << 4
    return codes + np.uint8(128 - 16), _halves(blocks, 0), None


def _q8_0(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    return blocks[:, 2:] + np.uint8(128), _halves(blocks, 0), None


def _with_minimum(codes: Bytes, scales: Floats, minima: Floats) -> tuple[Bytes, Floats, Floats]:
    """Convert 4-bit blocks whose weights are `scale * code + minimum`. Returns their codes, scales and offsets for
    `Blocks`, where the offset of a block is the weight that the middle code, 8, stands for.
    """
    return codes, scales, minima + scales * 8


def _q2_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    packed, scale, minimum = blocks[:, :16], _halves(blocks, 80), _halves(blocks, 82)
    return _with_minimum(_fields(blocks[:, 16:80], 32, 2), scale * (packed & 15), -minimum * (packed >> 4))


def _q3_k(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    low, high = _fields(blocks[:, 96:104], 8, 4), _fields(blocks[:, 104:108], 4, 2)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    codes = _fields(blocks[:, 32:96], 32, 2) | _fields(blocks[:, :32], 32, 1) << 2
    return codes + np.uint8(8 - 4), _halves(blocks, 108) * scales, None


def _scales_and_minima(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return the eight scales and the eight minima of each block of the GGUF type Q4_K, for its eight groups of
    weights. `blocks` are the bytes of blocks in the file, [blocks, bytes].
    """
    first, second, both = (blocks[:, 4 + 4 * n : 8 + 4 * n] for n in range(3))
    scales = np.concatenate([first & 63, both & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, both >> 4 | second >> 2 & 48], axis=1)
    return _halves(blocks, 0) * scales, -_halves(blocks, 2) * minima


def _q4_k(blocks: Bytes) -> tuple[Bytes, Floats, Floats]:
    return _with_minimum(_fields(blocks[:, 16:], 32, 4), *_scales_and_minima(blocks))


def _q6_k(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    codes = _fields(blocks[:, :128], 64, 4) | _fields(blocks[:, 128:192], 32, 2) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return codes + np.uint8(128 - 32), _halves(blocks, 208) * scales, None


def _iq4_nl(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    return _looked_up(_NON_LINEAR, _fields(blocks[:, 2:], 16, 4)), _halves(blocks, 0), None


def _iq4_xs(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & np.uint8(15)).reshape(len(blocks), -1)
    scales = (low | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    return _looked_up(_NON_LINEAR, _fields(blocks[:, 8:], 16, 4)), _halves(blocks, 0) * scales, None


def _mxfp4(blocks: Bytes) -> tuple[Bytes, Floats, None]:
    # A block's scale is a power of two, whose exponent is its first byte minus 127. The table has the doubled weights,
    # which are integers, so the scales are halved.
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128).astype(np.float32)
    return _looked_up(_HALVES, _fields(blocks[:, 1:], 16, 4)), scales, None


def _looked_up(table: NDArray[np.int8], codes: Bytes) -> Bytes:
    return (table[codes].astype(np.int16) + 128).astype(np.uint8)


_READERS = {
    "Q4_0": _Reader(18, (4, 32), _q4_0),
    "Q4_1": _Reader(20, (4, 32), _q4_1),
    "Q5_0": _Reader(22, (8, 32), _q5_0),
    "Q8_0": _Reader(34, (8, 32), _q8_0),
    "Q2_K": _Reader(84, (4, 16), _q2_k),
    "Q3_K": _Reader(110, (4, 16), _q3_k),
    "Q4_K": _Reader(144, (4, 32), _q4_k),
    "Q6_K": _Reader(210, (8, 16), _q6_k),
    "IQ4_NL": _Reader(18, (8, 32), _iq4_nl),
    "IQ4_XS": _Reader(136, (8, 32), _iq4_xs),
    "MXFP4": _Reader(17, (8, 32), _mxfp4),
}
