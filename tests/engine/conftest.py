"""Fixtures: the demo model in the library and in a session of ONNX Runtime."""

from typing import Any

import pytest

from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sampling.grammar import Guidance, model_guidance
from genai_server.engine.scheduling.step_time import StepTimeModel
from tests.running_server import DEMO


@pytest.fixture(scope="module")
def generator() -> OgGeneratorRunner:
    return OgGeneratorRunner(DEMO, "cpu", threads=1)


@pytest.fixture(scope="module")
def session() -> Any:
    return open_session(read_decoder_graph(DEMO), 1, optimized=False)


@pytest.fixture(scope="module")
def guidance(generator: OgGeneratorRunner) -> Guidance:
    return model_guidance(DEMO, generator.model)


@pytest.fixture
def passes_of_any_length_take_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepTimeModel, "curve", lambda times, num_tokens: [1.0] * (num_tokens + 1))
    monkeypatch.setattr(StepTimeModel, "has_timed", lambda *_: True)
