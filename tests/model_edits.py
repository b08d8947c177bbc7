"""Changes of a model directory as another builder, or another hand, would have made it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from tests.running_server import DEMO


def base_model(directory: Path) -> Path:
    """A copy of the demo model that has no chat template, as base models have none."""
    shutil.copytree(DEMO, directory, ignore=shutil.ignore_patterns("chat_template.jinja"))
    return directory


@contextmanager
def edited_config(directory: Path) -> Iterator[dict[str, Any]]:
    """Its genai_config.json, written as it is at the block's end."""
    path = directory / "genai_config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    yield config
    path.write_text(json.dumps(config), encoding="utf-8")


@contextmanager
def edited_graph(directory: Path) -> Iterator[onnx.GraphProto]:
    """Its graph, written as it is at the block's end; weights in files of their own stay there."""
    path = str(directory / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    yield model.graph
    onnx.save(model, path)
