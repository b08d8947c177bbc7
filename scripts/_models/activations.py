"""A copy of a model directory whose products are not rounded, to tell rounding from mistakes.

With the accuracy level that models are served with, activations are rounded to 8 bits before each product of a 4-bit
matrix. A difference in the last bit of a sum then moves some of them by a whole step, and the logits by a thousand
times more. Without this rounding, the logits of two correct runners differ as little as those of fp32.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from genai_server.engine.model.files import read_config


def with_float_activations(directory: Path) -> Path:
    """A copy, next to it, whose 4-bit matrices multiply activations of 32 bits (accuracy level 0)."""
    target = directory.with_name(f"{directory.name}-float-activations")
    shutil.copytree(directory, target, dirs_exist_ok=True)
    path = target / read_config(directory)["model"]["decoder"]["filename"]
    model = onnx.load(str(path), load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0
    onnx.save(model, str(path))
    return target
