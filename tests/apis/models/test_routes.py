"""The lists of models as OpenAI's and Anthropic's clients parse them, and the names of models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from openai import OpenAI

from tests.running_server import ROOT, RunningServer, body, wait_until
from tests.server_here import run_here


def test_a_model_is_listed_and_found_by_its_id_and_no_other(client: OpenAI) -> None:
    assert [(model.id, model.owned_by) for model in client.models.list()] == [("demo", "genai-server")]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-9")
    assert missing.value.code == "model_not_found"


def test_the_base_path_may_lack_v1(scripted: RunningServer) -> None:
    documented = scripted.client.get("/openapi.json").json()["paths"]
    # Calls of operators, and paths of this server alone, have one name.
    own = ("/v1/admin/", "/v1/requests", "/v1/chat/stream", "/v1/tool_servers", "/v1/load_lora", "/v1/unload_lora")
    paths = [path for path in documented if path.startswith("/v1/") and path != "/v1/chat" and not path.startswith(own)]
    assert len(paths) > 12
    for path, method in [(one, method) for one in paths for method in documented[one]]:
        place = path.replace("{model}", "demo").replace("{response_id}", "resp_1")
        fields: dict[str, Any] = {
            "json": {"unknown": 0} if method == "post" else None,
            "headers": {"x-request-id": "r"},
        }
        answers = [scripted.client.request(method, p, **fields) for p in (place, place.removeprefix("/v1"))]
        assert answers[0].json() == answers[1].json(), (method, path)
        assert answers[0].status_code == answers[1].status_code != 405


def test_model_has_its_length_and_capabilities(scripted: RunningServer, demo: RunningServer) -> None:
    entry = scripted.client.get("/v1/models/demo").json()
    assert (entry["max_model_len"], entry["context_length"]) == (2000, 2000)
    (entry,) = demo.client.get("/v1/models").json()["data"]
    assert entry["max_model_len"] == demo.client.post("/tokenize", json={"prompt": "x"}).json()["max_model_len"]
    assert entry["capabilities"] == ["completion", "tools"]


def test_task_and_vision_of_unloaded_models_are_listed(tmp_path: Path) -> None:
    sees, embeds = ROOT / "tests" / "built_models" / "qwen-3-vl-images", ROOT / "models" / "demo-embeddings"
    settings = {"GENAI_MODELS": f"one=/1,two=/2,sees={sees},embeds={embeds}", "GENAI_MAX_MODELS": "1"}
    with run_here(tmp_path, "--device", "scripted", settings=settings) as server:
        entries = {entry["id"]: entry for entry in server.client.get("/v1/models").json()["data"]}
    assert {id: entry["capabilities"] for id, entry in entries.items() if entry["state"] == "unloaded"} == {
        "two": ["completion"],
        "sees": ["completion", "vision"],
        "embeds": ["embedding"],
    }


def test_anthropics_client_lists_the_models_and_finds_one(scripted: RunningServer) -> None:
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as client:
        (model,) = client.models.list()
        found = model.to_dict()
        assert found == found | {"id": "demo", "display_name": "demo", "type": "model", "max_input_tokens": 2000}
        assert client.models.retrieve("demo") == model
        assert model.capabilities is not None
        assert (model.capabilities.thinking.supported, model.capabilities.image_input.supported) == (True, False)
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.models.retrieve("claude-9")
    assert missing.value.response.json()["type"] == "error"
    page = scripted.client.get("/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert page == {"data": page["data"], "has_more": False, "first_id": "demo", "last_id": "demo"}


@pytest.fixture(scope="module")
def aliased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"GENAI_MODELS": "one=/1,two=/2", "GENAI_MODEL_ALIASES": "gpt-4o=two,qwen3:4b=one,*=two"}
    with run_here(tmp_path_factory.mktemp("aliased"), "--device", "scripted", settings=settings) as running:
        wait_until(lambda: {entry["state"] for entry in running.client.get("/v1/models").json()["data"]} == {"ready"})
        yield running


@pytest.mark.parametrize(
    ("name", "model"),
    [("one", "one"), ("gpt-4o", "two"), ("qwen3:4b", "one"), ("claude-9", "two"), ("no:such", "two"), (None, "one")],
)
def test_a_request_gets_the_model_of_the_alias_that_it_names(
    aliased: RunningServer, name: str | None, model: str
) -> None:
    fields: dict[str, Any] = {} if name is None else {"model": name}
    for path in ("/v1/chat/completions", "/v1/messages"):
        answer = aliased.client.post(path, json=body("say x", max_tokens=9, **fields)).json()
        assert answer["model"] == model
    assert aliased.client.post("/tokenize", json={"prompt": "x", **fields}).status_code == 200


def test_aliases_are_listed_but_not_the_one_for_all_other_names(aliased: RunningServer) -> None:
    data = {entry["id"]: entry["root"] for entry in aliased.client.get("/v1/models").json()["data"]}
    assert data == {"one": "one", "qwen3:4b": "one", "two": "two", "gpt-4o": "two"}
    assert aliased.client.get("/v1/models/claude-9").json()["root"] == "two"


def test_an_operator_must_name_a_model_as_it_is(aliased: RunningServer) -> None:
    response = aliased.options(terminate_session="1", model="claude-9")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
