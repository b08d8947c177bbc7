"""A server with a draft model, which is the model itself."""

from collections.abc import Iterator

import pytest

from tests.running_server import DEMO, RunningServer, run_server

ASKED = "Write a long story."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    # Several models, so that each has its own entry.
    options = ("--models", f"small={DEMO},big={DEMO}", "--draft-model", f"big={DEMO}")
    with run_server(tmp_path_factory.mktemp("drafting"), *options) as running:
        yield running


def test_health_names_the_draft_model_of_each_model(server: RunningServer) -> None:
    devices = server.health()["devices"].values()
    found = {device["model"]: device["batching"]["draft_model"] for device in devices}
    assert found == {"small": None, "big": "demo"}


def test_answer_counts_accepted_tokens_of_the_draft_model(server: RunningServer) -> None:
    usages = {}
    for model in ("small", "big"):
        answer = server.chat(ASKED, model=model, temperature=0, max_tokens=100).json()
        usages[model] = answer["choices"][0]["message"]["content"], answer["usage"]
    assert usages["small"][0] == usages["big"][0]
    assert usages["big"][1]["completion_tokens"] == usages["small"][1]["completion_tokens"]
    assert set(usages["big"][1]["completion_tokens_details"]) >= {"accepted_prediction_tokens"}
