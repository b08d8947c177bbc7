"""Real operator libraries: a graph with an operator of onnxruntime-extensions, in both runtimes and in a server.

Skipped without the package, which the extra dev includes where it exists for this Python version.
"""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from genai_server.engine.runners.load_model import load_model
from genai_server.errors import ConfigurationError
from genai_server.messages.launch import EngineSpec
from genai_server.options.device import check_device
from tests.engine.model_runners import greedy_logits
from tests.engine.runners.test_load_model import spec
from tests.running_server import DEMO, RunningServer, run_python
from tests.server_here import run_here

PACKAGE = "onnxruntime_extensions"
PROMPT = [1, 57, 301, 44, 18, 902, 77, 5]

pytestmark = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")


def with_operator(target: Path) -> Path:
    """The demo model, whose logits are joined by an operator that ONNX Runtime itself lacks."""
    shutil.copytree(DEMO, target)
    model = onnx.load(str(DEMO / "model.onnx"), load_external_data=False)
    (last,) = (node for node in model.graph.node if "logits" in node.output)
    last.output[list(last.output).index("logits")] = "whole"
    model.graph.node.append(helper.make_node("NegPos", ["whole"], ["negative", "positive"], domain="ai.onnx.contrib"))
    model.graph.node.append(helper.make_node("Add", ["negative", "positive"], ["logits"]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    onnx.save(model, str(target / "model.onnx"))
    return target


def library(folder: Path) -> Path:
    """A copy of the package's library, which is also a Python module: if imported here, the copy would crash."""
    path = run_python("-c", f"import {PACKAGE} as package; print(package.get_library_path())")
    return Path(shutil.copy(path.strip(), folder / "operators.so"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = with_operator(tmp_path_factory.mktemp("operators") / "model")
    library(target)
    return target


def on(model: Path, *libraries: str, scheduler: str = "auto") -> EngineSpec:
    options = check_device({"session": {"custom_op_libraries": list(libraries)}}, "cpu")
    return spec(128, model_dir=model, options=options, scheduler=scheduler)


@pytest.mark.parametrize("scheduler", ["batched", "generator"])
def test_operator_library_of_the_model_works_in_both_runtimes(model: Path, scheduler: str) -> None:
    plain = load_model(spec(128, scheduler=scheduler))
    loaded = load_model(on(model, "operators.so", scheduler=scheduler))
    assert np.array_equal(greedy_logits(loaded.main, PROMPT, 5), greedy_logits(plain.main, PROMPT, 5))


def test_missing_operator_library_is_refused_with_the_option(model: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"NegPos.* is not a registered .*\[session\] custom_op_libraries"):
        load_model(on(model))


def test_operator_library_elsewhere_is_refused_with_the_places(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must lie in the model directory or below the working directory"):
        load_model(on(model, str(library(tmp_path)), scheduler="generator"))


@pytest.mark.slow
def test_a_server_answers_with_it(model: Path, tmp_path: Path, demo: RunningServer) -> None:
    settings = {"GENAI_OPTIONS": 'session.custom_op_libraries = ["operators.so"]'}
    with run_here(tmp_path, "--model-dir", str(model), settings=settings) as server:
        assert server.health()["devices"]["cpu"]["batching"]["scheduler"] == "batched"
        given = server.chat("Name a colour.", temperature=0, max_tokens=8).json()["content"]
    assert demo.chat("Name a colour.", temperature=0, max_tokens=8).json()["content"] == given
