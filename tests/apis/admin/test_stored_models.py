"""GET /v1/admin/models/stored and /variants, with a hub over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from genai_server.hub.client import Hub
from tests.local_hub import HubRepository, LocalHub, run_hub
from tests.running_server import DEMO, RunningServer
from tests.server_here import run_here

FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
# A repository's page is not fetched.
SIZE = sum(len(content) for name, content in FILES.items() if name != "README.md")


def _variant(name: str, folder: str, size: int, *, for_device: bool | None = None) -> dict[str, object]:
    memory = int(1.2 * size) + 200 * 1024**2
    return {"name": name, "folder": folder, "size": size, "for_device": for_device, "memory": memory, "fits": None}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with run_hub() as found:
        monkeypatch.setattr("genai_server.cli.serve.loaders.Hub", lambda: Hub(endpoint=found.url))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield found


@pytest.fixture
def server(hub: LocalHub, tmp_path: Path) -> Iterator[RunningServer]:
    settings = {"GENAI_MODELS_DIR": str(tmp_path / "models"), "GENAI_DEVICE": "scripted"}
    with run_here(tmp_path, settings=settings) as found:
        yield found


def stored(server: RunningServer) -> Any:
    return server.client.get("/v1/admin/models/stored").json()


def variants(server: RunningServer, repository: str) -> httpx.Response:
    return server.client.get("/v1/admin/models/variants", params={"repository": repository})


def test_pulled_models_are_listed_with_source_and_served_name(
    server: RunningServer, hub: LocalHub, tmp_path: Path
) -> None:
    models = str(tmp_path / "models")
    assert stored(server) == {"object": "list", "directory": models, "memory": None, "data": []}
    hub.repositories["org/tiny"] = HubRepository({f"cpu/{name}": content for name, content in FILES.items()})
    (variant,) = variants(server, "org/tiny").json()["data"]
    assert variant == _variant("org/tiny:cpu", "cpu", SIZE, for_device=False)
    assert server.client.post("/api/pull", json={"model": variant["name"], "stream": False}).status_code == 200
    (found,) = stored(server)["data"]
    assert found.pop("size") > SIZE
    path = str(tmp_path / "models" / "tiny")
    assert found == {"id": "tiny", "object": "model", "path": path, "source": "org/tiny:cpu", "served": "org/tiny"}
    server.client.post("/v1/admin/models/unload", json={"name": "org/tiny"})
    assert stored(server)["data"][0]["served"] is None


def test_variants_of_a_repository_have_their_sizes(server: RunningServer, hub: LocalHub) -> None:
    files = {f"{folder}/{name}": content for folder in ("a", "b/c") for name, content in FILES.items()}
    hub.repositories["org/two"] = HubRepository({**files, "b/c/more.bin": b"x" * 1000, "README.md": b"text"})
    found = variants(server, "hf.co/org/two").json()["data"]
    assert found == [_variant("org/two:a", "a", SIZE), _variant("org/two:b/c", "b/c", SIZE + 1000)]
    for repository, says in (("org/none", "there is no org/none"), ("../x", "is not the name of a repository")):
        response = variants(server, repository)
        assert (response.status_code, says in response.json()["error"]["message"]) == (400, True)


def test_variants_that_fit_the_machine_are_marked(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genai_server.cli.serve.loaders.total_memory", lambda: 300 * 1024**2)
    settings = {"GENAI_MODELS_DIR": str(tmp_path / "models"), "GENAI_DEVICE": "cpu"}
    large = {"cpu/fp32/genai_config.json": b"{}", "cpu/fp32/model.onnx": b"x" * 120 * 1024**2}
    small = {"cpu/int4/genai_config.json": b"{}", "cuda/int4/genai_config.json": b"{}"}
    hub.repositories["org/many"] = HubRepository({**large, **small})
    with run_here(tmp_path, "--model-dir", str(DEMO), settings=settings) as server:
        found = [
            (each["folder"], each["for_device"], each["fits"]) for each in variants(server, "org/many").json()["data"]
        ]
        assert found == [("cpu/fp32", True, False), ("cpu/int4", True, True), ("cuda/int4", False, True)]
        assert stored(server)["memory"] == 300 * 1024**2
