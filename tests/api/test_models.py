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
    for path in ("/models", "/models/onnx-genai"):
        assert scripted.client.get(path).json() == scripted.client.get(f"/v1{path}").json()
