"""A model of 8 bits, such as the demo model, with its matrices in 4 bits and blocks of 128 weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

BLOCK = 128


def write_requantized(source: Path, target: Path) -> Path:
    """A model directory like `source`."""
    shutil.copytree(source, target)
    model = onnx.load(str(source / "model.onnx"))
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in [node for node in model.graph.node if node.op_type == "MatMulNBits"]:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        weights, scales = (initializers[name] for name in node.input[1:3])
        assert (attributes["bits"].i, attributes["K"].i % BLOCK, len(node.input)) == (8, 0, 3)
        attributes["bits"].i, attributes["block_size"].i = 4, BLOCK
        packed, scale = _in_four_bits(onnx.numpy_helper.to_array(weights), onnx.numpy_helper.to_array(scales))
        weights.CopyFrom(onnx.numpy_helper.from_array(packed, weights.name))
        scales.CopyFrom(onnx.numpy_helper.from_array(scale, scales.name))
    (target / "model.onnx.data").unlink()
    onnx.save(model, str(target / "model.onnx"))
    return target


def _in_four_bits(
    weights: NDArray[np.uint8], scales: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """From 8 bits [rows, blocks, block size] around 128 to 4 around 8, two in a byte, the lower first."""
    rows = weights.shape[0]
    values = (weights.astype(np.float32) - 128) * scales[:, :, np.newaxis]
    blocks = values.reshape(rows, -1, BLOCK)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / 7
    quantized = np.clip(np.rint(blocks / np.maximum(scale, 1e-12)) + 8, 0, 15).astype(np.uint8)
    packed = quantized[:, :, ::2] | quantized[:, :, 1::2] << 4
    return packed, scale.reshape(rows, -1)
