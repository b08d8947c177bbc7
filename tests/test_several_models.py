"""Several models in one server: selected by name, loaded and unloaded at run time, on real processes."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.running_server import DEMO, RunningServer, body, last_event, refusal, run_server, wait_until
from tests.server_here import run_here

SLOW = "delay 0.02; count 1000"
BOTH = {"one": "ready", "two/b": "ready"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two models on one scripted device each; tests leave them unchanged."""
    folder = tmp_path_factory.mktemp("models")
    with run_server(folder, "--device", "scripted", settings={"GENAI_MODELS": "one=/1,two/b=/2"}) as running:
        wait_until(lambda: states(running) == BOTH)
        yield running


@pytest.fixture(autouse=True)
def as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves other models, and unloads these, so that the tests that follow do not fail."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        found = states(server)
        for name in found.keys() - BOTH.keys():
            unload(server, name=name, timeout=0)
        assert found == BOTH


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Three models, of which two may be loaded."""
    settings = {"GENAI_MODELS": "one=/1,two=/2,three=/3", "GENAI_MAX_MODELS": "2"}
    with run_here(tmp_path_factory.mktemp("limited"), "--device", "scripted", settings=settings) as running:
        wait_until(lambda: states(running) == {"one": "ready", "two": "ready", "three": "unloaded"})
        yield running


def load(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/admin/models/load", json=fields)


def unload(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/admin/models/unload", json=fields)


def states(server: RunningServer) -> dict[str, str]:
    return {entry["id"]: entry["state"] for entry in server.client.get("/v1/models").json()["data"]}


def pids(server: RunningServer) -> dict[str, Any]:
    """The process of each model's first device."""
    models = server.health()["models"]
    return {name: next(iter(model["devices"].values())).get("pid") for name, model in models.items()}


def test_request_gets_the_named_model_or_the_first(server: RunningServer) -> None:
    assert len(set(pids(server).values())) == 2
    for name, served in (("one", "one"), ("two/b", "two/b"), (None, "one")):
        fields = {} if name is None else {"model": name}
        answer = server.client.post("/v1/chat/completions", json=body("say x", **fields)).json()
        assert (answer["model"], answer["choices"][0]["message"]["content"]) == (served, "x")
    missing = server.chat("say x", model="three")
    assert refusal(missing) == (404, "model_not_found", "model")
    assert missing.json()["error"]["message"] == 'model "three" is not served; "one", "two/b" are'
    assert server.client.get("/v1/models/two/b").json()["id"] == "two/b"


def test_model_is_loaded_and_unloaded_while_another_streams(server: RunningServer) -> None:
    kept = pids(server)
    with server.stream(SLOW, model="one") as events:
        reader = iter(events)
        next(reader)
        assert load(server, name="more", path="/more").json()["state"] == "ready"
        assert server.chat("say x", model="more").json()["content"] == "x"
        pid = pids(server)["more"]
        assert unload(server, name="more").json() == {"id": "more", "object": "model", "unloaded": True}
        assert not psutil.pid_exists(pid)
        assert refusal(server.chat("say x", model="more")) == (404, "model_not_found", "model")
        running = events.response.headers["x-request-id"]
        assert server.options(terminate_session="1", request_id=running).status_code == 200
        last = last_event(reader)
    assert last["finish_reason"] == "terminated"
    assert pids(server) == kept


def test_unloading_waits_for_requests_and_refuses_new_ones(server: RunningServer) -> None:
    load(server, name="more", path="/more")
    with server.stream(SLOW, model="more") as events:
        reader = iter(events)
        next(reader)
        assert unload(server, name="more", wait=False).json()["unloaded"] is False
        assert states(server)["more"] == "unloading"
        assert refusal(server.chat("say x", model="more")) == (404, "model_not_found", "model")
        for _ in range(75):  # longer than the second after which idle models end
            next(reader)
        running = events.response.headers["x-request-id"]
        server.client.post(f"/v1/requests/{running}/cancel", json={}).raise_for_status()
        assert last_event(reader)["finish_reason"] == "cancelled"
    wait_until(lambda: states(server) == BOTH)


def test_request_beyond_the_unload_timeout_ends_with_an_error(server: RunningServer) -> None:
    load(server, name="more", path="/more")
    whole: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: whole.append(server.chat(SLOW, model="more")))
    waiting.start()
    wait_until(lambda: server.health()["models"]["more"]["devices"]["scripted"]["running"] == 1)
    with server.begun(SLOW, model="more") as reader:
        assert unload(server, name="more", timeout=0).json()["unloaded"] is True
        found = [json.loads(event) for event in reader]
    waiting.join(90)
    assert [event["error"]["code"] for event in found if "error" in event] == ["model_unloaded"]
    assert "error" in found[-1]
    assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (503, "model_unloaded")
    assert server.chat("say x").json()["content"] == "x"


def test_invalid_directory_is_refused_before_anything_starts(server: RunningServer, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(DEMO, broken)
    (broken / "tokenizer.json").unlink()
    processes = psutil.Process(server.process.pid).children(recursive=True)
    response = load(server, name="more", path=str(broken), device="cpu")
    assert refusal(response) == (400, "model_load_failed", "path")
    assert "tokenizer.json is missing" in response.json()["error"]["message"]
    assert refusal(load(server, name="more", path="/nowhere", device="cpu")) == (400, "model_load_failed", "path")
    assert states(server) == BOTH
    assert psutil.Process(server.process.pid).children(recursive=True) == processes


def test_failed_load_is_explained_and_can_be_repeated(server: RunningServer, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(DEMO, broken)
    (broken / "model.onnx").write_bytes(b"no graph")
    response = load(server, name="more", path=str(broken), device="cpu")
    assert refusal(response) == (400, "model_load_failed", "path")
    assert "more" not in states(server)
    tagged = [model["name"] for model in server.client.get("/api/tags").json()["models"]]
    assert not [name for name in tagged if name.startswith("more")]
    reason = response.json()["error"]["message"].partition("cannot be loaded: ")[2]
    for found in (server.client.get("/v1/models/more").json(), server.health()["models"]["more"]):
        assert (found["state"], found["error"]) == ("failed", reason)
    refused = server.chat("Hello", model="more")
    assert (refused.status_code, reason in refused.json()["error"]["message"]) == (503, True)
    shutil.copy(DEMO / "model.onnx", broken / "model.onnx")
    assert load(server, name="more", path=str(broken), device="cpu").json()["state"] == "ready"
    assert server.chat("Hello", model="more", max_tokens=3).status_code == 200
    unload(server, name="more")


def test_invalid_load_request_is_refused(scripted: RunningServer) -> None:
    assert refusal(load(scripted, name="demo", path="/1")) == (400, "invalid_value", "name")
    assert refusal(load(scripted, name="a b", path="/1")) == (400, "invalid_value", "name")
    assert refusal(load(scripted, name="more", path="/1", device="toaster")) == (400, "invalid_value", "device")
    assert refusal(load(scripted, name="more")) == (400, "missing_required_parameter", "path")
    assert states(scripted) == {"demo": "ready"}


def test_former_default_name_is_the_first_model_and_not_listed(server: RunningServer) -> None:
    listed = [model["id"] for model in server.client.get("/v1/models").json()["data"]]
    completion = {"model": "onnx-genai", "prompt": "say x\n\x04"}
    assert server.client.post("/v1/completions", json=completion).json()["model"] == listed[0]
    # The server's own API has the name that the request used.
    assert server.chat("Hello", model="onnx-genai", max_tokens=3).json()["metrics"]["model"] == "onnx-genai"
    assert "onnx-genai" not in listed


def test_an_alias_is_another_name_until_it_is_forgotten(server: RunningServer) -> None:
    def alias(alias: str, name: str | None) -> httpx.Response:
        return server.client.post("/v1/admin/models/alias", json={"alias": alias, "name": name})

    assert alias("gpt", "one").json() == {"id": "gpt", "object": "model", "root": "one"}
    answer = server.client.post("/v1/completions", json={"model": "gpt", "prompt": "say x\n\x04"}).json()
    assert answer["model"] == "one"
    # The server's own API has the name that the request used.
    assert server.chat("say x", model="gpt").json()["metrics"]["model"] == "gpt"
    with server.stream("say x", model="gpt") as events:
        assert json.loads(list(events)[-1])["metrics"]["model"] == "gpt"
    assert states(server) == {**BOTH, "gpt": "ready"}
    assert refusal(alias("one", "one")) == (400, "invalid_value", "alias")
    assert refusal(alias("b", "two")) == (404, "model_not_found", "name")
    assert refusal(load(server, name="gpt", path="/1")) == (400, "invalid_value", "name")
    assert alias("gpt", None).json()["root"] is None
    assert refusal(server.chat("say x", model="gpt")) == (404, "model_not_found", "model")


def test_every_worker_learns_of_loads_and_unloads(workers: RunningServer) -> None:
    def statuses(number: int = 12) -> set[int]:
        """Status codes of requests on separate connections, which reach both processes."""
        asked = body("say x", model="more")
        return {httpx.post(f"{workers.url}/v1/chat", json=asked, timeout=90).status_code for _ in range(number)}

    assert statuses() == {404}
    assert load(workers, name="more", path="/more").json()["state"] == "ready"
    assert statuses() == {200}
    unload(workers, name="more")
    assert statuses() == {404}


def test_idle_model_is_unloaded_and_reloaded_on_demand(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", settings={"GENAI_IDLE_UNLOAD": "1"}) as server:
        with server.begun("delay 0.05; count 1000") as reader:
            pid = server.device("scripted")["pid"]
            for _ in range(30):  # longer than the second after which it is idle
                next(reader)
            assert server.device("scripted")["pid"] == pid
        wait_until(lambda: states(server)["demo"] == "unloaded")
        assert not psutil.pid_exists(pid)
        assert server.client.get("/readyz").status_code == 200
        assert server.chat("say x").json()["content"] == "x"
        assert server.device("scripted")["pid"] != pid


def test_longest_idle_model_is_evicted_at_the_limit(limited: RunningServer) -> None:
    for name in ("one", "three"):
        assert limited.chat("say x", model=name).json()["content"] == "x"
    assert states(limited) == {"one": "ready", "two": "unloaded", "three": "ready"}
    with limited.begun(SLOW, model="one"):
        assert limited.chat("say x", model="two").json()["content"] == "x"
        assert states(limited) == {"one": "ready", "two": "ready", "three": "unloaded"}


def test_request_waits_until_its_timeout_if_all_models_are_busy(limited: RunningServer) -> None:
    with limited.begun(SLOW, model="one") as one, limited.begun(SLOW, model="two") as two:
        response = limited.chat("say x", model="three", timeout=0.5)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "models_busy")
        assert all(json.loads(next(reader))["token"] for reader in (one, two))
    assert limited.chat("say x", model="three").json()["content"] == "x"
