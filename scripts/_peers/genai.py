"""genai-server as this checkout has it."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from .peer import MAX_LENGTH, SLOTS, THREADS, Launch, Model


def prepare(folder: Path, model: Model) -> Launch:
    """Nothing is built; packed weights are kept in the folder."""
    settings = {"model-dir": model.onnx.absolute(), "max-length": MAX_LENGTH, "max-batch-size": SLOTS}
    settings |= {
        "threads": THREADS,
        "cache-dir": folder.absolute() / "cache",
        "profile-dir": folder.absolute() / "profiles",
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    return Launch(
        command=lambda port: [sys.executable, "-m", "genai_server", "serve", f"--port={port}", *options],
        version=f"genai-server {version('genai-server')}, onnxruntime {version('onnxruntime')}",
        weights="int4",
        ready_path="/readyz",
    )
