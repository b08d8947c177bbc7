"""What is served, as OpenAI's client reads it."""

import openai
import pytest
from openai import OpenAI

from tests.running_server import RunningServer


@pytest.fixture
def client(scripted: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0)


def test_models_lists_the_served_model(client: OpenAI) -> None:
    assert [(model.id, model.owned_by) for model in client.models.list()] == [("onnx-genai", "genai-server")]


def test_a_model_is_found_by_its_id_and_no_other(client: OpenAI) -> None:
    assert client.models.retrieve("onnx-genai").id == "onnx-genai"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-9")
    assert missing.value.code == "model_not_found"


def test_the_base_path_may_lack_v1(scripted: RunningServer) -> None:
    documented = scripted.client.get("/openapi.json").json()["paths"]
    # Those of this server alone, which have one name.
    own = ("/v1/admin/", "/v1/requests", "/v1/chat/stream")
    paths = [path for path in documented if path.startswith("/v1/") and path != "/v1/chat" and not path.startswith(own)]
    assert len(paths) > 12
    for path in paths:
        asked = path.replace("{model}", "onnx-genai").replace("{response_id}", "resp_1")
        for method in documented[path]:
            with_v1, without = (
                scripted.client.request(
                    method, place, json={} if method == "post" else None, headers={"x-request-id": "r"}
                )
                for place in (asked, asked.removeprefix("/v1"))
            )
            assert with_v1.json() == without.json(), (method, path)
            assert with_v1.status_code == without.status_code != 405
