"""Models of the real builder (tests/built_models/README.md) with weights in 4, 8 and 16 bits."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

BLOCK = 32


def write_quantized(source: Path, target: Path, bits: int = 4) -> Path:
    """A model directory like `source` whose decoder multiplies with weights of 4 or 8 bits only."""
    shutil.copytree(source, target)
    name = json.loads((source / "genai_config.json").read_text())["model"]["decoder"]["filename"]
    model = onnx.load(str(source / name))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in constants:
            continue
        matrix = numpy_helper.to_array(constants[node.input[1]])
        num_inputs, num_outputs = matrix.shape
        names = [f"{node.input[1]}.{part}" for part in ("quantized", "scales")]
        quantized, scales = _quantized(matrix, bits)
        model.graph.initializer.append(numpy_helper.from_array(quantized, names[0]))
        model.graph.initializer.append(numpy_helper.from_array(scales, names[1]))
        made = helper.make_node(
            "MatMulNBits",
            [node.input[0], *names],
            node.output,
            node.name,
            domain="com.microsoft",
            K=num_inputs,
            N=num_outputs,
            bits=bits,
            block_size=BLOCK,
            accuracy_level=4,
        )
        node.CopyFrom(made)
    read = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, str(target / name))
    return target


def _quantized(matrix: NDArray[np.float32], bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """From [inputs, outputs] to bytes [outputs, blocks, …] and scales [outputs, blocks]."""
    rows = np.pad(matrix.T, ((0, 0), (0, -len(matrix) % BLOCK)))
    blocks = rows.reshape(len(rows), -1, BLOCK)
    middle = 1 << (bits - 1)
    scales = np.maximum(np.abs(blocks).max(axis=2, keepdims=True) / (middle - 1), 1e-12).astype(np.float32)
    values = (np.rint(blocks / scales) + middle).astype(np.uint8)
    packed = values if bits == 8 else values[:, :, ::2] | values[:, :, 1::2] << 4
    return packed, scales[:, :, 0]


def write_halved(source: Path, target: Path, *parts: str) -> Path:
    """A model directory like `source` whose decoder, and other parts, compute and keep their states in 16 bits."""
    shutil.copytree(source, target)
    config = json.loads((source / "genai_config.json").read_text())["model"]
    for name in (config[part]["filename"] for part in ("decoder", *parts)):
        model = onnx.load(str(source / name))
        in_float = [*DEFAULT_OP_BLOCK_LIST, "LinearAttentionGate"]
        halved = convert_float_to_float16(model, keep_io_types=False, disable_shape_infer=True, op_block_list=in_float)
        OnnxModel(halved).topological_sort()  # casts were added behind the nodes that read them
        onnx.save(halved, str(target / name))
    return target
