"""Adapters in a server with scripted devices: selected by id on every endpoint, loaded and unloaded at run time."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.running_server import PATIENCE, RunningServer, body, refusal, run_server, wait_until
from tests.server_here import run_here


def write(folder: Path, name: str, text: str) -> str:
    file = folder / f"{name}.txt"
    file.write_text(text, encoding="utf-8")
    return str(file)


def load(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/admin/adapters/load", json=fields)


def unload(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/admin/adapters/unload", json=fields)


def ids(server: RunningServer) -> list[str]:
    return [entry["id"] for entry in server.client.get("/v1/models").json()["data"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two models on two devices with an adapter `sir` each; tests leave it unchanged."""
    folder = tmp_path_factory.mktemp("adapters")
    settings = {
        "GENAI_MODELS": "one=/1,two/b=/2",
        "GENAI_ADAPTERS": f"sir={write(folder, 'sir', 'Sir, ')},two/b:sir={write(folder, 'b', 'B, ')}",
    }
    with run_server(folder, "--device", "scripted:0,scripted:1", settings=settings) as server:
        wait_until(lambda: all(e["state"] == "ready" for e in server.client.get("/v1/models").json()["data"]))
        server.client.post("/v1/admin/models/alias", json={"alias": "gpt", "name": "one"})
        yield server


@pytest.fixture
def extra(tmp_path: Path) -> str:
    return write(tmp_path, "extra", "Extra! ")


@pytest.fixture(autouse=True)
def as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unloads what a failed test has left loaded, so that the tests that follow do not fail, too."""
    yield
    if "server" in request.fixturenames and "one:extra" in ids(server := request.getfixturevalue("server")):
        unload(server, model="one", name="extra")


# chosen


def test_every_endpoint_uses_the_adapter_named_by_id(server: RunningServer) -> None:
    def post(path: str, **fields: Any) -> Any:
        return server.client.post(path, json={"model": "one:sir", **fields}).json()

    chat = body("say hi")
    own = post("/v1/chat", **chat)
    completion = post("/v1/chat/completions", **chat)
    text = post("/v1/completions", prompt="say hi\n\x04")
    response = post("/v1/responses", input="say hi")
    message = post("/v1/messages", **chat, max_tokens=50)
    assert [
        (own["metrics"]["model"], own["content"]),
        (completion["model"], completion["choices"][0]["message"]["content"]),
        (text["model"], text["choices"][0]["text"]),
        (response["model"], response["output"][0]["content"][0]["text"]),
        (message["model"], message["content"][0]["text"]),
    ] == [("one:sir", "Sir, hi")] * 5
    with server.stream("say hi", model="one:sir") as events:
        assert "".join(json.loads(event)["token"] for event in list(events)[:-1]) == "Sir, hi"


@pytest.mark.parametrize(
    ("id", "said"), [(None, "hi"), ("one", "hi"), ("gpt:sir", "Sir, hi"), ("two/b:sir", "B, hi"), ("two/b", "hi")]
)
def test_adapter_is_found_under_each_name_of_its_model(server: RunningServer, id: str | None, said: str) -> None:
    fields = {} if id is None else {"model": id}
    assert server.chat("say hi", **fields).json()["content"] == said


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/chat/completions", "/tokenize", "/apply-template"])
@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("one:madam", 'model "one" has no adapter "madam"; its adapters: "sir"'),
        ("one:", 'model "one" has no adapter ""; its adapters: "sir"'),
        ("one:sir:sir", 'model "one:sir:sir" is not served; "one", "two/b" are'),
        ("one:../sir", 'model "one" has no adapter "../sir"; its adapters: "sir"'),
        ("three:sir", 'model "three:sir" is not served; "one", "two/b" are'),
        (":sir", 'model ":sir" is not served; "one", "two/b" are'),
        # Two models have it.
        ("sir", 'model "sir" is not served; "one", "two/b" are'),
    ],
)
def test_unknown_adapter_id_is_model_not_found(server: RunningServer, path: str, id: str, message: str) -> None:
    response = server.client.post(path, json=body("say hi", model=id))
    assert refusal(response) == (404, "model_not_found", "model")
    assert response.json()["error"]["message"] == message


def test_several_answers_and_prompts_all_use_the_adapter(server: RunningServer) -> None:
    fields = {"model": "one:sir", "prompt": ["say a\n\x04", "say b\n\x04"], "n": 2}
    choices = server.client.post("/v1/completions", json=fields).json()["choices"]
    assert [choice["text"] for choice in choices] == ["Sir, a", "Sir, a", "Sir, b", "Sir, b"]


# listed


def test_adapters_are_listed_with_their_models(server: RunningServer) -> None:
    data = {entry["id"]: entry for entry in server.client.get("/v1/models").json()["data"]}
    assert list(data) == ["one", "gpt", "one:sir", "two/b", "two/b:sir"]
    entry = data["two/b:sir"]
    assert (entry["parent"], entry["root"], entry["state"]) == ("two/b", "two/b:sir", "ready")
    assert "parent" not in data["one"]
    assert server.client.get("/v1/models/two/b:sir").json() == entry
    assert server.client.get("/v1/models/gpt:sir").json() == data["one:sir"] | {"id": "gpt:sir"}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert "one:sir" in [model.id for model in client.models.list()]


def test_metrics_log_and_request_list_name_the_adapter(server: RunningServer) -> None:
    with server.stream("delay 0.02; count 1000", model="two/b:sir") as events:
        next(iter(events))
        (entry,) = server.client.get("/v1/requests").json()["data"]
        assert entry["model"] == "two/b:sir"
        assert "adapter" not in entry
    server.chat("say x", model="two/b:sir")
    assert 'finished_reason="stop",model_name="two/b:sir"' in server.client.get("/metrics").text
    assert "model=two/b:sir" in server.log()


# loaded and unloaded


def test_adapter_is_loaded_and_unloaded_while_streams_run(server: RunningServer, extra: str) -> None:
    with server.stream("delay 0.02; count 40", model="one") as events:
        reader = iter(events)
        next(reader)
        loaded = load(server, model="one", name="extra", path=extra).json()
        assert (loaded["id"], loaded["parent"], loaded["state"]) == ("one:extra", "one", "ready")
        for device in ("scripted:0", "scripted:1"):
            assert server.chat("say x", model="one:extra", device=device).json()["content"] == "Extra! x"
        assert refusal(server.chat("say x", model="two/b:extra")) == (404, "model_not_found", "model")
        gone = {"id": "one:extra", "object": "model", "unloaded": True, "running": []}
        assert unload(server, model="one", name="extra").json() == gone
        assert refusal(server.chat("say x", model="one:extra")) == (404, "model_not_found", "model")
        assert json.loads(list(reader)[-1])["finish_reason"] == "stop"


def test_running_request_keeps_its_unloaded_adapter(server: RunningServer, extra: str) -> None:
    load(server, name="extra", path=extra)
    with server.stream("delay 0.02; count 1000", model="one:extra") as events:
        reader = iter(events)
        next(reader)
        name = events.response.headers["x-request-id"]
        assert unload(server, name="extra").json()["running"] == [name]
        other = write(Path(extra).parent, "other", "Other! ")
        assert load(server, name="extra", path=other).status_code == 200
        assert server.chat("say x", model="one:extra").json()["content"] == "Other! x"
        read = [next(reader) for _ in range(40)]  # beyond what the adapter has said
        assert server.client.post(f"/v1/requests/{name}/cancel", json={}).status_code == 200
        found = [json.loads(event) for event in [*read, *reader]]
    assert "".join(event["token"] for event in found[:-1]).startswith("xtra! 1, 2, 3")
    assert found[-1]["finish_reason"] == "cancelled"
    unload(server, name="extra")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *(({"name": name}, (400, "invalid_value", "name")) for name in ("sir", "a/b", "a:b", "..", "x" * 65)),
        ({"name": "x", "model": "three"}, (404, "model_not_found", "model")),
        ({"name": "x", "path": "/nowhere"}, (400, "adapter_load_failed", "path")),
        ({"name": "x", "path": None}, (400, "missing_required_parameter", "path")),
    ],
)
def test_invalid_adapter_is_refused_and_changes_nothing(
    server: RunningServer, extra: str, fields: dict[str, Any], expected: Any
) -> None:
    before = ids(server)
    given = {"path": extra} | fields
    assert refusal(load(server, **{name: value for name, value in given.items() if value is not None})) == expected
    assert ids(server) == before
    assert server.chat("say hi", model="one:sir").json()["content"] == "Sir, hi"


def test_unknown_adapter_cannot_be_unloaded(server: RunningServer) -> None:
    response = unload(server, model="two/b", name="madam")
    assert refusal(response) == (404, "model_not_found", "name")
    assert response.json()["error"]["message"] == 'model "two/b" has no adapter "madam"; it has: sir'
    assert refusal(unload(server, model="three", name="sir")) == (404, "model_not_found", "model")


def test_every_worker_knows_an_adapter_as_soon_as_it_is_loaded(workers: RunningServer, extra: str) -> None:
    def statuses() -> set[int]:
        """Status codes of requests on separate connections, which reach both processes."""
        fields = body("say x", model="demo:extra")
        return {httpx.post(f"{workers.url}/v1/chat", json=fields, timeout=90).status_code for _ in range(12)}

    assert statuses() == {404}
    assert load(workers, name="extra", path=extra).status_code == 200
    assert statuses() == {200}
    unload(workers, name="extra")
    assert statuses() == {404}


def test_an_engine_that_died_has_its_adapters_again_except_one_whose_file_is_gone(own_folder: Path, extra: str) -> None:
    given, lost = write(own_folder, "given", "Given! "), write(own_folder, "lost", "Lost! ")
    with run_server(own_folder, "--device", "scripted", "--adapters", f"given={given},lost={lost}") as server:
        load(server, name="extra", path=extra)
        Path(lost).unlink()
        pid = server.device("scripted")["pid"]
        assert server.chat("say xyz; crash at 2").status_code == 500
        wait_until(lambda: server.is_ready() and server.device("scripted")["pid"] != pid)
        for model, said in (("demo", "x"), ("demo:given", "Given! x"), ("demo:extra", "Extra! x")):
            assert server.chat("say x", model=model).json()["content"] == said
        response = server.chat("say x", model="demo:lost")
        assert refusal(response) == (503, "unavailable", "model")
        assert response.json()["error"]["message"] == 'adapter "lost" cannot be loaded; see the server log'
        assert f'adapter "lost": {lost} does not exist' in server.log()


def test_a_model_that_was_idle_comes_back_with_its_adapters(own_folder: Path, extra: str) -> None:
    with run_here(own_folder, "--device", "scripted", settings={"GENAI_IDLE_UNLOAD": "1"}) as server:
        load(server, name="extra", path=extra)
        model = "/v1/models/demo:extra"
        wait_until(lambda: server.client.get(model).json()["state"] == "unloaded")
        assert server.chat("say x", model="demo:extra").json()["content"] == "Extra! x"
        wait_until(lambda: server.client.get(model).json()["state"] == "unloaded")
        assert load(server, name="more", path=extra).status_code == 200  # by now its model may be idle again
        wait_until(lambda: server.client.get(model).json()["state"] == "unloaded")
        assert unload(server, name="more").json()["running"] == []


# at the start


def test_missing_file_ends_the_start_with_its_name(refused_start: Callable[..., str]) -> None:
    line = refused_start("--device", "scripted", "--adapters", "law=/nowhere")
    assert "--adapters: demo:law=/nowhere: there is no such file" in line


def test_unfit_file_is_the_reason_of_a_failed_load(own_folder: Path, adapted: Path) -> None:
    wrong = adapted / "chat_template.jinja"
    options = ("--model-dir", str(adapted), "--adapters", f"law={wrong}")
    with run_server(own_folder, *options, ready=False) as server:
        assert server.process.wait(PATIENCE) == 1
        assert f'adapter "law": {wrong} is not an adapter file' in server.log()


# by vLLM's calls


def test_vllms_calls_load_an_adapter_that_requests_name_alone(server: RunningServer, extra: str) -> None:
    client = server.client
    fields = {"lora_name": "extra", "lora_path": extra}
    loaded = client.post("/v1/load_lora_adapter", json=fields)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'extra' added successfully.")
    assert server.chat("say hi", model="extra").json()["content"] == "Extra! hi"
    again = client.post("/v1/load_lora_adapter", json=fields)
    assert refusal(again) == (400, "invalid_value", "lora_name")
    assert "has already been loaded" in again.json()["error"]["message"]
    assert client.post("/v1/load_lora_adapter", json={**fields, "load_inplace": True}).status_code == 200
    unloaded = client.post("/v1/unload_lora_adapter", json={"lora_name": "extra", "lora_int_id": 1})
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'extra' removed successfully.")
    assert refusal(server.chat("say hi", model="extra")) == (404, "model_not_found", "model")
    gone = client.post("/v1/unload_lora_adapter", json={"lora_name": "extra"})
    assert refusal(gone) == (404, "model_not_found", "lora_name")


def test_errors_of_vllms_calls_name_its_fields(server: RunningServer) -> None:
    fields = {"lora_name": "x", "lora_path": "/none"}
    missing = server.client.post("/v1/load_lora_adapter", json=fields)
    assert refusal(missing) == (400, "adapter_load_failed", "lora_path")
    empty = server.client.post("/v1/load_lora_adapter", json={**fields, "lora_path": ""})
    assert refusal(empty) == (400, "invalid_value", "lora_path")
    model = server.client.post("/v1/load_lora_adapter", json={**fields, "base_model_name": "three"})
    assert refusal(model) == (404, "model_not_found", "base_model_name")


def test_the_load_counts_running_requests(server: RunningServer) -> None:
    assert server.client.get("/load").json() == {"server_load": 0}
    with server.stream("delay 0.02; count 1000") as events:
        next(iter(events))
        assert server.client.get("/load").json() == {"server_load": 1}
    wait_until(lambda: server.client.get("/load").json() == {"server_load": 0})


def test_sources_of_cache_events_are_the_ports_of_the_engines(server: RunningServer, tmp_path: Path) -> None:
    assert server.client.get("/kv_event_sources").json() == []
    settings = {"GENAI_KV_EVENTS": "tcp://*:5557", "GENAI_KV_EVENTS_TOPIC": "kv@{model}"}
    with run_here(tmp_path, "--device", "scripted:0,scripted:1", "--model-name", "one", settings=settings) as other:
        sources = other.client.get("/kv_event_sources").json()
    assert sources[0]["topic"] == "kv@one"
    found = [(source["data_parallel_rank"], source["endpoint"]) for source in sources]
    assert found == [(0, "tcp://127.0.0.1:5557"), (1, "tcp://127.0.0.1:5558")]
