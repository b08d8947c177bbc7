"""The names by which requests select models and adapters, on all endpoints, over real sockets."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from _fuzz.corpus import BODIES
from msgspec import structs

from genai_server.generation.catalog import _named, plain_name
from genai_server.messages.server_status import ModelState, ModelStatus
from tests.running_server import RunningServer, wait_until
from tests.server_here import run_here


@pytest.mark.parametrize(("aliases", "chosen"), [([], "one"), (["x"], "one"), (["*"], None), (["onnx-genai"], "two")])
def test_former_default_name_is_an_alias_of_the_first_model(aliases: list[str], chosen: str | None) -> None:
    models = [ModelStatus(name, "/x", ["cpu"], 0, ModelState.READY, 0) for name in ("one", "two")]
    models[1] = structs.replace(models[1], aliases=aliases)
    found = _named(models, "onnx-genai")
    assert (found and found.name) == chosen


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("named")
    (folder / "first").write_text("adapted ")
    settings = {
        "GENAI_MODELS": "one=/1,org/two=/2,other=/3",
        "GENAI_MODEL_ALIASES": "qwen3:4b=one,tagged:latest=one",
        "GENAI_ADAPTERS": f"other:latest={folder / 'first'},one:law={folder / 'first'}",
    }
    with run_here(folder, "--device", "scripted", settings=settings) as server:
        wait_until(lambda: {model["state"] for model in server.health()["models"].values()} == {"ready"})
        yield server


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("a", "a"),
        ("a:latest", "a"),
        ("hf.co/org/a:latest", "org/a"),
        ("https://huggingface.co/org/a", "org/a"),
        ("org/hf.co/a", "org/hf.co/a"),
        ("a:4b", "a:4b"),
    ],
)
def test_a_plain_name_lacks_hub_address_and_tag_latest(given: str, plain: str) -> None:
    assert plain_name(given) == plain


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("one", "one"),
        ("one:latest", "one"),
        ("qwen3:4b", "one"),
        ("qwen3:4b:latest", "one"),
        ("tagged:latest", "one"),
        ("hf.co/org/two:latest", "org/two"),
        ("one:law", "one:law"),
        ("one:law:latest", "one:law"),
        ("qwen3:4b:law", "one:law"),
        ("other:latest", "other:latest"),
    ],
)
def test_a_listed_name_chooses_its_model(named: RunningServer, name: str, model: str) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": "say hi"}]}
    answer = named.client.post("/v1/chat/completions", json=body).json()
    text = "adapted hi" if ":" in model else "hi"
    assert answer.get("error") is None, answer
    assert (answer["model"], answer["choices"][0]["message"]["content"]) == (model, text)


@pytest.mark.parametrize("name", ["none:latest", "one:tax", "one:tax:latest", "tagged", ":latest", ":"])
def test_an_unknown_name_is_refused(named: RunningServer, name: str) -> None:
    answer = named.client.post("/v1/completions", json={"model": name, "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


def _fields(server: RunningServer, path: str) -> dict[str, Any]:
    """The fields of an endpoint's body, of all its forms."""
    document = server.client.get("/openapi.json").json()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = [form["$ref"].rpartition("/")[2] for form in schema.get("oneOf", schema.get("anyOf", [schema]))]
    found: dict[str, Any] = {}
    for name in names:
        found |= document["components"]["schemas"][name]["properties"]
    return found


def _is_unknown(name: str, response: httpx.Response) -> bool:
    """Whether a model with this name is not found."""
    return response.status_code == 404 and f'model \\"{name}\\"' in response.text


def test_names_of_api_tags_work_on_every_endpoint(named: RunningServer) -> None:
    tagged = [model["name"] for model in named.client.get("/api/tags").json()["models"]]
    assert {"one:latest", "qwen3:4b", "tagged:latest", "one:law", "org/two:latest", "other:latest"} == set(tagged)
    taking = {path: bodies[0] for path, bodies in BODIES.items() if "model" in _fields(named, path)}
    del taking["/api/pull"]  # accepts names of models that are not served
    assert len(taking) > 15
    for path, body in taking.items():
        for name in ("one:latest", "none:latest"):
            response = named.client.post(path, json={**body, "model": name})
            assert _is_unknown(name, response) == (name == "none:latest"), (path, response.text)
    for path in ("/v1/models/{}", "/v1/requests?model={}", "/v1/admin/runtime_options?model={}"):
        assert named.client.get(path.format("one:latest")).status_code == 200, path


def test_an_alias_of_a_tagged_name_belongs_to_its_model(named: RunningServer) -> None:
    given = named.client.post("/v1/admin/models/alias", json={"alias": "mine", "name": "one:latest"})
    assert given.json()["root"] == "one"
    assert named.client.get("/v1/models/mine").json()["root"] == "one"
    assert named.client.post("/v1/admin/models/alias", json={"alias": "mine", "name": None}).status_code == 200
