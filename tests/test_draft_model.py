"""A server with a draft model, which is the model itself."""

from collections.abc import Iterator

import pytest

from tests.running_server import DEMO, RunningServer, run_server, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    # Several models, so that each has its own entry.
    options = ("--models", f"small={DEMO},big={DEMO}", "--draft-model", f"big={DEMO}")
    with run_server(tmp_path_factory.mktemp("drafting"), *options) as running:
        wait_until(lambda: all(model["state"] == "ready" for model in running.health()["models"].values()))
        yield running


def test_health_names_the_draft_model_of_each_model(server: RunningServer) -> None:
    models = server.health()["models"]
    found = {name: model["devices"]["cpu"]["batching"]["draft_model"] for name, model in models.items()}
    assert found == {"small": None, "big": "demo"}


def test_model_that_is_loaded_later_may_have_a_draft_model(server: RunningServer) -> None:
    url = "/v1/admin/models/load"
    asked = {"name": "later", "path": str(DEMO), "draft_model": str(DEMO)}
    assert server.client.post(url, json=asked, timeout=120).status_code == 200
    batching = server.health()["models"]["later"]["devices"]["cpu"]["batching"]
    assert batching["draft_model"] == "demo"
    assert server.client.post("/v1/admin/models/unload", json={"name": "later", "timeout": 0}).status_code == 200
    refused = server.client.post(url, json=asked | {"draft_model": "/missing"}, timeout=120)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "draft_model"
    assert error["message"].startswith('model "later" cannot be loaded: draft_model=/missing: ')
