"""A model whose norms differ in their last bit, to see how much of its logits depends on such differences.

The order of sums differs as little between two correct runners. Rounding of activations to 8 bits makes more of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from genai_server.engine.model.files import read_config


def with_nudged_norms(directory: Path) -> Path:
    """Copy a model directory; every second weight of each norm is the next larger number. Returns the copy."""
    target = directory.with_name(f"{directory.name}-nudged")
    shutil.copytree(directory, target, dirs_exist_ok=True)
    path = target / read_config(directory)["model"]["decoder"]["filename"]
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
