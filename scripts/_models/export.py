"""From a Hugging Face directory to a model directory of onnxruntime-genai."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BUILDER, PATCHED_BUILDER = "onnxruntime_genai.models.builder", "_models.patched_builder"


def export(
    source: Path, target: Path, *, precision: str, block_size: int, options: Sequence[str] = (), builder: str = BUILDER
) -> None:
    """Run a model builder for the CPU; its thousands of lines are shown only when it fails."""
    command = [sys.executable, *builder_arguments(builder, source, target, precision, block_size), *options]
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile("w+") as log:
        done = subprocess.run([*command, "-c", cache], stdout=log, stderr=log, env=offline_environment())
        if done.returncode:
            log.seek(0)
            raise SystemExit(f"the model builder failed:\n{log.read()[-4000:]}")
    _share_nothing(target / "genai_config.json")
    # The builder writes the tokenizer anew, with a normalizer that would change what users write.
    shutil.copy(source / "tokenizer.json", target)


def builder_arguments(builder: str, source: Path, target: Path, precision: str, block_size: int) -> list[str]:
    """What Python is given to run a model builder for the CPU. Further options of the model may follow."""
    command = ["-m", builder, "-i", str(source), "-o", str(target), "-p", precision, "-e", "cpu"]
    return [*command, "--extra_options", "accuracy_level=4", f"block_size={block_size}"]


def _share_nothing(path: Path) -> None:
    """Leave out that graphs share weights: onnxruntime-genai cannot load these on a CPU."""
    config = json.loads(path.read_text())
    parts = [part for name in ("decoder", "mtp") if (part := config["model"].get(name)) is not None]
    shared = [part.pop("shared_initializers", None) for part in parts]
    if any(shared):
        path.write_text(json.dumps(config, indent=4) + "\n")


def offline_environment() -> dict[str, str]:
    """The variables for a program of this folder in `.venv-models`, which downloads nothing."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[1])}


def set_greedy(directory: Path) -> None:
    """Make greedy choice the default of a model directory."""
    path = directory / "genai_config.json"
    config = json.loads(path.read_text())
    config["search"] |= {"do_sample": False, "temperature": 1.0, "top_k": 1, "top_p": 1.0}
    path.write_text(json.dumps(config, indent=4) + "\n")
