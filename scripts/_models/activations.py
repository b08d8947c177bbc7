"""Copies of a model directory whose numbers differ, to tell rounding from mistakes.

With the accuracy level that models are served with, activations are rounded to 8 bits before each product of a 4-bit
matrix. A difference in the last bit of a sum then moves some of them by a whole step, and the logits by a thousand
times more. Without this rounding, the logits of two correct runners differ as little as those of fp32.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from genai_server.engine.model.files import read_config


def with_float_activations(directory: Path) -> Path:
    """A copy whose 4-bit matrices multiply activations of 32 bits (accuracy level 0)."""
    target, path = _copied(directory, "float-activations")
    model = onnx.load(str(path), load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0
    onnx.save(model, str(path))
    return target


def with_nudged_norms(directory: Path) -> Path:
    """A copy in which every second weight of each norm is the next larger number. The order of sums makes differences
    as small, between two correct runners.
    """
    target, path = _copied(directory, "nudged")
    model = onnx.load(str(path))
    norms = [
        tensor
        for tensor in model.graph.initializer
        if "norm" in tensor.name and len(tensor.dims) == 1 and tensor.data_type == onnx.TensorProto.FLOAT
    ]
    assert norms, f"{path} has no norms"
    for tensor in norms:
        weights = numpy_helper.to_array(tensor).copy()
        weights[::2] = np.nextafter(weights[::2], np.float32(np.inf))
        tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    data = f"{path.name}.data"
    (target / data).unlink(missing_ok=True)  # onnx appends
    onnx.save(model, str(path), save_as_external_data=True, location=data, size_threshold=1024)
    return target


def _copied(directory: Path, ending: str) -> tuple[Path, Path]:
    """A copy next to a model directory, and its decoder's graph."""
    target = directory.with_name(f"{directory.name}-{ending}")
    shutil.copytree(directory, target, dirs_exist_ok=True)
    return target, target / read_config(directory)["model"]["decoder"]["filename"]
