"""Fixtures: the demo model in the library and in a session of ONNX Runtime, and models with states of fixed size."""

from pathlib import Path
from typing import Any

import pytest
from _models.driven import Driven

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.sampling.grammar import Guidance, model_guidance
from genai_server.engine.scheduling.step_time import StepTimeModel
from tests.demo_device import MAX_LENGTH, DemoDevice
from tests.engine.hybrids import BUILT, Hybrid
from tests.engine.model_runners import batched_runner
from tests.engine.quantized_models import write_halved, write_quantized
from tests.running_server import DEMO


@pytest.fixture(scope="module")
def generator() -> OgGeneratorRunner:
    return OgGeneratorRunner(DEMO, "cpu", threads=1)


@pytest.fixture(scope="module")
def session() -> Any:
    return open_session(read_decoder_graph(DEMO), 1)


@pytest.fixture(scope="module")
def guidance(generator: OgGeneratorRunner) -> Guidance:
    return model_guidance(DEMO, generator.model)


@pytest.fixture(scope="module")
def batched(session: Any) -> BatchedRunner:
    """A batch of six slots for `DemoDevice`."""
    return batched_runner(session=session, num_slots=6, max_length=MAX_LENGTH)


@pytest.fixture(scope="module")
def loaded(batched: BatchedRunner) -> LoadedModel:
    return LoadedModel(batched, batched)


@pytest.fixture
def plain(loaded: LoadedModel, guidance: Guidance, tmp_path: Path) -> DemoDevice:
    """A device whose answers have no drafts."""
    return DemoDevice(loaded, guidance, tmp_path)


@pytest.fixture(scope="module", params=["lfm2", "qwen-3.5"])
def hybrid(request: pytest.FixtureRequest) -> Hybrid:
    return Hybrid(BUILT / request.param)


@pytest.fixture(scope="module", params=[("lfm2", 4), ("lfm2", 16), ("qwen-3.5", 8), ("qwen-3.5", 16)])
def packed_hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hybrid:
    """A model whose weights have this number of bits."""
    (name, bits), folder = request.param, tmp_path_factory.mktemp("hybrid") / "model"
    if bits == 16:
        return Hybrid(write_halved(BUILT / name, folder))
    return Hybrid(write_quantized(BUILT / name, folder, bits))


@pytest.fixture
def runner(hybrid: Hybrid) -> Driven:
    return hybrid.load()


@pytest.fixture
def passes_of_any_length_take_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepTimeModel, "curve", lambda times, num_tokens: [1.0] * (num_tokens + 1))
