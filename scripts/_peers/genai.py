"""genai-server in this checkout."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import onnx

from .peer import MAX_LENGTH, SLOTS, THREADS, Launch, Model
from .perplexity import by_echo


def prepare(folder: Path, model: Model, *, attention: str = "fp32") -> Launch:
    """Nothing is built; packed weights are kept in the folder. `attention` is the data type of attention's products."""
    settings = {"model-dir": model.onnx.absolute(), "max-length": MAX_LENGTH, "max-batch-size": SLOTS}
    settings |= {
        "threads": THREADS,
        "cache-dir": folder.absolute() / "cache",
        "profile-dir": folder.absolute() / "profiles",
        # Random weights repeat themselves, which drafts would exploit; the other servers have none.
        "speculation": "off",
        "attention-type": attention,
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    return Launch(
        command=lambda port: [sys.executable, "-m", "genai_server", "serve", f"--port={port}", *options],
        version=f"genai-server {version('genai-server')}, onnxruntime {version('onnxruntime')}",
        weights=f"int{_bits(model.onnx)}" + (f", attention in {attention}" if attention != "fp32" else ""),
        ready_path="/readyz",
        perplexity=lambda url: by_echo(url, model.onnx),
    )


def _bits(directory: Path) -> int:
    """Bits of a weight of the model's matrices, 32 if they are not quantized."""
    graph = onnx.load(directory / "model.onnx", load_external_data=False).graph
    matrices = (node for node in graph.node if node.op_type == "MatMulNBits")
    return max(
        (attribute.i for node in matrices for attribute in node.attribute if attribute.name == "bits"), default=32
    )
