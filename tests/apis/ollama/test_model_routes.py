"""Models as Ollama's clients see them, over real sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_server import DEMO, RunningServer
from tests.server_here import run_here

DETAILS = {"parent_model", "format", "family", "families", "parameter_size", "quantization_level"}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"GENAI_MODELS": "one=/1,org/two=/2", "GENAI_MODEL_ALIASES": "qwen3:4b=one,*=org/two"}
    with run_here(tmp_path_factory.mktemp("named"), "--device", "scripted", settings=settings) as server:
        yield server


def test_version_is_ollamas_with_this_servers(scripted: RunningServer) -> None:
    found = scripted.client.get("/api/version").json()
    assert tuple(map(int, found["version"].split("."))) >= (0, 6, 4)
    assert found["server"].startswith("genai-server ")
    assert scripted.client.head("/api/version").status_code == scripted.client.head("/").status_code == 200


def test_models_are_listed_with_details_of_their_directories(demo: RunningServer) -> None:
    (found,) = demo.client.get("/api/tags").json()["models"]
    assert (found["name"], found["model"]) == ("demo:latest", "demo:latest")
    assert found["size"] == sum(path.stat().st_size for path in DEMO.iterdir() if path.is_file())
    assert (len(found["digest"]), found["details"].keys()) == (64, DETAILS)
    assert (found["details"]["format"], bool(found["details"]["family"])) == ("onnx", True)
    assert found["capabilities"] == ["completion", "tools"]
    assert demo.client.head("/api/tags").status_code == 200


def test_aliases_are_listed_but_not_the_one_for_all_names(named: RunningServer) -> None:
    found = [model["name"] for model in named.client.get("/api/tags").json()["models"]]
    assert found == ["one:latest", "qwen3:4b", "org/two:latest"]


def test_a_name_may_have_the_tag_latest(named: RunningServer, scripted: RunningServer) -> None:
    for name in ("one", "one:latest", "qwen3:4b"):
        found = named.client.post("/api/show", json={"model": name}).json()
        assert found["model_info"]["general.basename"] == "one"
    assert scripted.client.post("/api/show", json={"model": "gpt:latest"}).status_code == 404


def test_a_model_is_shown_with_its_length_and_template(demo: RunningServer) -> None:
    found = demo.client.post("/api/show", json={"model": "demo", "verbose": True}).json()
    architecture = found["model_info"]["general.architecture"]
    length = demo.client.get("/v1/models").json()["data"][0]["max_model_len"]
    assert found["model_info"][f"{architecture}.context_length"] == length
    assert found["parameters"].split() == ["num_ctx", str(length)]
    assert "messages" in found["template"]
    assert found["capabilities"] == ["completion", "tools"]
    assert found["details"].keys() == DETAILS


def test_a_model_that_is_shown_must_be_named(scripted: RunningServer) -> None:
    for body, status in (({}, 400), ({"name": "demo"}, 200), ({"model": "gpt-9"}, 404)):
        assert scripted.client.post("/api/show", json=body).status_code == status


def test_loaded_models_run(demo: RunningServer) -> None:
    (found,) = demo.client.get("/api/ps").json()["models"]
    assert (found["name"], found["size_vram"]) == ("demo:latest", 0)
    assert found["size"] > 0
    assert found["context_length"] > 0
    assert found["expires_at"] > "2100"


def test_a_model_that_is_not_loaded_yet_does_not_run(tmp_path: Path) -> None:
    settings = {"GENAI_MODELS": "one=/1,two=/2", "GENAI_MAX_MODELS": "1"}
    with run_here(tmp_path, "--device", "scripted", settings=settings) as server:
        assert [model["name"] for model in server.client.get("/api/ps").json()["models"]] == ["one:latest"]
        assert server.client.post("/api/show", json={"model": "two"}).json()["capabilities"] == ["completion"]
        assert server.client.post("/api/generate", json={"model": "two"}).json()["done_reason"] == "load"
        assert [model["name"] for model in server.client.get("/api/ps").json()["models"]] == ["two:latest"]
