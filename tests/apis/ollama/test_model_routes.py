"""Models as Ollama's clients see them, over real sockets."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from genai_server.apis.ollama import routes as ollama
from genai_server.hub.client import Hub
from tests.local_hub import HubRepository, LocalHub, run_hub
from tests.raw_http import connect, post
from tests.running_server import DEMO, RunningServer, wait_until
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
    assert listed(named) == ["one:latest", "qwen3:4b", "org/two:latest"]


def test_a_name_may_have_the_tag_latest(named: RunningServer, scripted: RunningServer) -> None:
    for name in ("one", "one:latest", "qwen3:4b"):
        found = named.client.post("/api/show", json={"model": name}).json()
        assert found["model_info"]["general.basename"] == "one"
    assert scripted.client.post("/api/show", json={"model": "gpt:latest"}).status_code == 404


def test_a_model_is_shown_with_its_length_and_template(demo: RunningServer) -> None:
    found = demo.client.post("/api/show", json={"model": "demo", "verbose": True}).json()
    length = demo.client.get("/v1/models").json()["data"][0]["max_model_len"]
    about = found["model_info"]
    assert about[f"{about['general.architecture']}.context_length"] == length
    assert (found["parameters"].split(), "messages" in found["template"]) == (["num_ctx", str(length)], True)
    assert (found["capabilities"], found["details"].keys()) == (["completion", "tools"], DETAILS)


def test_a_model_that_is_shown_must_be_named(scripted: RunningServer) -> None:
    for body, status in (({}, 400), ({"name": "demo"}, 200), ({"model": "gpt-9"}, 404)):
        assert scripted.client.post("/api/show", json=body).status_code == status


def test_loaded_models_run(demo: RunningServer) -> None:
    (found,) = demo.client.get("/api/ps").json()["models"]
    assert (found["name"], found["size_vram"], found["expires_at"] > "2100") == ("demo:latest", 0, True)
    assert min(found["size"], found["context_length"]) > 0


def test_a_model_that_is_not_loaded_yet_does_not_run(tmp_path: Path) -> None:
    settings = {"GENAI_MODELS": "one=/1,two=/2", "GENAI_MAX_MODELS": "1"}
    with run_here(tmp_path, "--device", "scripted", settings=settings) as server:
        assert listed(server, "/api/ps") == ["one:latest"]
        assert server.client.post("/api/show", json={"model": "two"}).json()["capabilities"] == ["completion"]
        assert server.client.post("/api/generate", json={"model": "two"}).json()["done_reason"] == "load"
        assert listed(server, "/api/ps") == ["two:latest"]


# Without the model's card, which is not pulled.
FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file() and path.suffix != ".md"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with run_hub() as found:
        found.repositories["org/tiny"] = HubRepository({f"cpu/{name}": content for name, content in FILES.items()})
        monkeypatch.setattr("genai_server.cli.serve.loaders.Hub", lambda: Hub(endpoint=found.url))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield found


@pytest.fixture
def server(hub: LocalHub, tmp_path: Path) -> Iterator[RunningServer]:
    settings = {"GENAI_MODELS_DIR": str(tmp_path / "models"), "GENAI_DEVICE": "cpu"}
    with run_here(tmp_path, "--model-dir", str(DEMO), settings=settings) as found:
        yield found


def pull(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/api/pull", json=fields)


def require_pulled(server: RunningServer, model: str) -> None:
    assert pull(server, model=model, stream=False).json() == {"status": "success"}


def listed(server: RunningServer, path: str = "/api/tags") -> list[str]:
    return [model["name"] for model in server.client.get(path).json()["models"]]


def test_a_pulled_model_is_served_by_its_repositorys_name(server: RunningServer, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in pull(server, model="hf.co/org/tiny:latest").text.splitlines()]
    assert lines[0] == {"status": "pulling manifest"}
    assert [line["status"] for line in lines[-3:]] == ["verifying sha256 digest", "writing manifest", "success"]
    whole = {line["status"]: line["total"] for line in lines if line.get("completed") == line.get("total", -1)}
    assert whole == {f"pulling cpu/{name}": len(content) for name, content in FILES.items()}
    assert (tmp_path / "models" / "tiny" / "genai_config.json").exists()
    assert ("org/tiny:latest" in listed(server), listed(server, "/api/ps")) == (True, ["demo:latest"])
    body = {"model": "hf.co/org/tiny", "prompt": "What is the capital of France?", "stream": False}
    assert server.client.post("/api/generate", json=body).json()["response"] == "The capital of France is Paris."
    require_pulled(server, "org/tiny")


def test_a_folder_chooses_among_several_models(server: RunningServer, hub: LocalHub) -> None:
    files = {f"{folder}/{name}": content for folder in ("a", "b") for name, content in FILES.items()}
    hub.repositories["org/two"] = HubRepository(files)
    refused = pull(server, model="org/two", stream=False)
    assert refused.status_code == 400
    assert {"org/two:a", "org/two:b"} <= set(refused.json()["error"].split())
    require_pulled(server, "org/two:b")
    assert {"org/two:latest", "org/two:b"} <= set(listed(server))


def test_a_served_model_is_pulled_without_asking_the_hub(server: RunningServer, hub: LocalHub) -> None:
    require_pulled(server, "org/tiny:cpu")
    hub.repositories.clear()
    for name in ("demo", "demo:latest", "org/tiny:cpu", "hf.co/org/tiny:latest"):
        require_pulled(server, name)
        lines = [json.loads(line)["status"] for line in pull(server, model=name).text.splitlines()]
        assert lines == ["pulling manifest", "success"]
    assert "there is no org/tiny" in pull(server, model="org/tiny:gpu", stream=False).json()["error"]


def test_failed_pull_is_reported_in_ollamas_form(server: RunningServer) -> None:
    for name, says in (("org/none", "there is no org/none"), ("../x", "is not the name of a repository")):
        refused = pull(server, model=name, stream=False)
        assert (refused.status_code, says in refused.json()["error"]) == (400, True)
        *_, last = pull(server, model=name).text.splitlines()
        assert says in json.loads(last)["error"]
    assert pull(server).status_code == 400


def test_disconnected_clients_pull_ends(server: RunningServer, hub: LocalHub, tmp_path: Path) -> None:
    hub.repositories["org/large"] = HubRepository({**FILES, "model.onnx.data": b"x" * 40_000_000})
    with httpx.stream("POST", f"{server.url}/api/pull", json={"model": "org/large"}, timeout=90) as response:
        next(line for line in response.iter_lines() if "completed" in line)
    wait_until(lambda: not list((tmp_path / "models").glob(".large.lock")))
    require_pulled(server, "org/large")


def test_disconnected_client_without_a_stream_ends_its_pull(
    server: RunningServer, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, closed = threading.Event(), threading.Event()
    close = ollama._Pull.close

    def noted(pull: ollama._Pull) -> None:
        close(pull)
        closed.set()

    monkeypatch.setattr(ollama._Pull, "close", noted)
    hub.repositories["org/large"] = HubRepository({**FILES, "model.onnx.data": b"x" * 40_000_000})

    def wait(path: str) -> None:
        begun.set()
        closed.wait(90)

    hub.before_sending = wait
    with connect(server) as sock:
        sock.sendall(post(server, "/api/pull", json={"model": "org/large", "stream": False}))
        assert begun.wait(90)
    assert closed.wait(90)
    wait_until(lambda: not list((tmp_path / "models").glob(".large.lock")))
    assert not (tmp_path / "models" / "large").exists()


def test_many_pulls_delay_no_request(server: RunningServer, hub: LocalHub) -> None:
    go_on = threading.Event()

    def wait(path: str) -> None:
        go_on.wait(60)

    hub.before_sending = wait
    with ExitStack() as left, httpx.Client(base_url=server.url, timeout=90) as client:
        left.callback(go_on.set)
        for number in range(min(32, (os.cpu_count() or 1) + 4)):
            hub.repositories[f"org/r{number}"] = HubRepository(FILES)
            stream = client.stream("POST", "/api/pull", json={"model": f"org/r{number}"})
            next(left.enter_context(stream).iter_lines())
        body = {"prompt": "What is the capital of France?", "stream": False}
        assert client.post("/api/generate", json=body).json()["response"]
