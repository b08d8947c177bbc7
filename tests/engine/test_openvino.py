"""A real provider package: OpenVINO on a CPU, next to and instead of ONNX Runtime's own kernels.

Skipped without the package, and if it finds no device: `pip install onnxruntime-ep-openvino` (tried with 1.8.1), into
another folder if it is not to stay (`--target`, with that folder in PYTHONPATH).
"""

import importlib.util
from typing import Any

import pytest

from genai_server.engine.model.session_options import missing_device
from genai_server.engine.runners.load_model import load_model
from genai_server.messages.launch import EngineSpec
from genai_server.options.device import check_device
from tests.engine.model_runners import greedy
from tests.engine.runners.test_load_model import spec

PACKAGE = "onnxruntime_ep_openvino"
PROMPT = [1, 57, 301, 44, 18, 902, 77, 5]


def why_not() -> str:
    """Why OpenVINO cannot be tried here, or an empty text."""
    if importlib.util.find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed"
    return missing_device(check_device(sections(), "cpu")) or ""


def sections(**options: Any) -> dict[str, Any]:
    return {"providers": ["openvino", "cpu"], "provider": {"openvino": {"package": PACKAGE} | options}}


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def on_openvino(device: str) -> EngineSpec:
    return spec(128, device=device, options=check_device(sections(), device))


def test_the_batch_and_the_generator_answer_as_on_the_cpu_alone() -> None:
    expected = greedy(load_model(spec(128, scheduler="generator")).main, PROMPT, 12)
    batched = load_model(on_openvino("cpu"))
    assert batched.batch is not None
    assert greedy(batched.main, PROMPT, 12) == expected
    assert greedy(load_model(on_openvino("openvino")).main, PROMPT, 12) == expected


def test_shares_of_both_providers_are_reported() -> None:
    nodes = load_model(on_openvino("cpu")).batching.nodes
    assert list(nodes) == ["openvino", "cpu"]
    assert (nodes["openvino"] or 0) > (nodes["cpu"] or 0) > 0
