"""Sequences without a client, on the runners of all kinds of models."""

import pytest

from genai_server.engine.runners.base import try_pass
from genai_server.engine.runners.load_model import load_model
from tests.engine.runners.test_load_model import spec
from tests.running_server import ROOT


@pytest.mark.parametrize("model", ["demo", "demo-embeddings", "demo-reranker", "demo-speech"])
def test_pass_without_a_request_leaves_no_sequence(model: str) -> None:
    runner = load_model(spec(0, model_dir=ROOT / "models" / model)).main
    for _ in range(2 * runner.abilities.max_rows):
        try_pass(runner)
    assert runner.slots is None or runner.slots.num_running == 0
