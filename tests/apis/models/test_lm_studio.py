"""LM Studio's lists of models over real sockets, with the fields of its documentation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_server import DEMO, ROOT, RunningServer, wait_until
from tests.server_here import run_here


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two models; the second is loaded by its first request."""
    settings = {
        "GENAI_MODELS": f"one={DEMO},org/two={DEMO}",
        "GENAI_MODEL_ALIASES": "gpt=one,*=one",
        "GENAI_MAX_MODELS": "1",
        "GENAI_MAX_LENGTH": "700",
    }
    with run_here(tmp_path_factory.mktemp("server"), "--device", "scripted", settings=settings) as server:
        yield server


def test_v0_lists_each_name_with_state_and_context(server: RunningServer) -> None:
    found = server.client.get("/api/v0/models").json()
    assert (found["object"], [entry["id"] for entry in found["data"]]) == ("list", ["one", "gpt", "org/two"])
    loaded, alias, unloaded = found["data"]
    assert loaded == alias | {"id": "one"}
    assert loaded == {
        "id": "one",
        "object": "model",
        "type": "llm",
        "publisher": "genai-server",
        "arch": "llama",
        "compatibility_type": "gguf",
        "quantization": "unknown",
        "state": "loaded",
        "max_context_length": 700,
        "loaded_context_length": 700,
        "capabilities": ["tool_use"],
    }
    assert (unloaded["state"], unloaded["publisher"], unloaded["max_context_length"]) == ("not-loaded", "org", 700)
    assert "loaded_context_length" not in unloaded
    for entry in found["data"]:
        assert server.client.get(f"/api/v0/models/{entry['id']}").json() == entry
    assert server.client.get("/api/v0/models/one:latest").json() == loaded | {"id": "one:latest"}


def test_v0_generates_as_openais_endpoints_do(server: RunningServer) -> None:
    asked = {"model": "one", "messages": [{"role": "user", "content": "say hi"}]}
    found = server.client.post("/api/v0/chat/completions", json=asked).json()
    assert (found["object"], found["choices"][0]["message"]["content"]) == ("chat.completion", "hi")
    with server.client.stream("POST", "/api/v0/chat/completions", json={**asked, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert list(response.iter_lines())[-2] == "data: [DONE]"
    found = server.client.post("/api/v0/completions", json={"model": "one", "prompt": "say hi\n\x04"}).json()
    assert (found["object"], found["choices"][0]["text"]) == ("text_completion", "hi")
    refused = server.client.post("/api/v0/embeddings", json={"model": "one", "input": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_task")


def test_an_unknown_model_is_an_error_in_openais_form(scripted: RunningServer) -> None:
    refused = scripted.client.get("/api/v0/models/none")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_v1_lists_each_name_with_its_loaded_instances(server: RunningServer) -> None:
    loaded, _, unloaded = server.client.get("/api/v1/models").json()["models"]
    assert loaded == {
        "type": "llm",
        "publisher": "genai-server",
        "key": "one",
        "display_name": "one",
        "architecture": "llama",
        "quantization": None,
        "size_bytes": sum(path.stat().st_size for path in DEMO.iterdir() if path.is_file()),
        "params_string": None,
        "loaded_instances": [{"id": "one", "config": {"context_length": 700}}],
        "max_context_length": 700,
        "format": None,
        "capabilities": {"vision": False, "trained_for_tool_use": True},
    }
    assert (unloaded["key"], unloaded["loaded_instances"], unloaded["max_context_length"]) == ("org/two", [], 700)


def test_models_for_embeddings_are_listed_and_rerankers_are_not(tmp_path: Path) -> None:
    models = ROOT / "models"
    settings = {"GENAI_MODELS": f"vectors={models / 'demo-embeddings'},scores={models / 'demo-reranker'}"}
    with run_here(tmp_path, "--device", "cpu", settings=settings) as server:
        wait_until(lambda: {model["state"] for model in server.health()["models"].values()} == {"ready"})
        (v0,) = server.client.get("/api/v0/models").json()["data"]
        (v1,) = server.client.get("/api/v1/models").json()["models"]
        assert (v0["id"], v0["type"], v1["key"], v1["type"]) == ("vectors", "embeddings", "vectors", "embedding")
        assert not {"architecture", "capabilities"} & v1.keys()
