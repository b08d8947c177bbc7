"""The endpoints that convert text and token ids."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from genai_server.config.sources import load_settings
from genai_server.messages.server_status import EngineState, EngineStatus, ModelState, ModelStatus, ServerStatus
from tests.reported_status import reporting
from tests.running_server import DEMO, RunningServer, body
from tests.server_here import app_for

PATHS = ["/tokenize", "/v1/tokenize"]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def loading(short_folder: Path) -> Iterator[Callable[..., TestClient]]:
    """Makes clients of an API process with further options, whose engine is not ready yet."""
    about = ModelStatus("demo", str(DEMO), ["cpu"], 0, ModelState.LOADING, 0)

    def client(**options: str) -> TestClient:
        settings = load_settings({"model_dir": str(DEMO), **options}, environ={}, dotenv=None)
        return TestClient(app_for(settings, short_folder), base_url="http://localhost")

    with reporting(short_folder, ServerStatus("secret", [EngineStatus("cpu", EngineState.STARTING)], [about])):
        yield client


def _post(server: RunningServer, path: str, **fields: Any) -> Any:
    response = server.client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


# /tokenize


@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_has_tokens(demo: RunningServer, path: str) -> None:
    answer = _post(demo, path, prompt="Hello<|im_end|>", model="demo")
    assert answer["tokens"][-1] == 2
    assert answer == {"tokens": answer["tokens"], "count": len(answer["tokens"]), "max_model_len": 2048}


def test_llama_cpps_name_for_a_prompt_is_taken_with_its_options(demo: RunningServer) -> None:
    assert _post(demo, "/tokenize", content="<|im_end|>")["tokens"] == [2]
    assert 2 not in _post(demo, "/tokenize", content="<|im_end|>", parse_special=False)["tokens"]
    for option in ({"add_special": True}, {"add_special": False}):
        assert _post(demo, "/tokenize", content="hi", **option) == _post(demo, "/tokenize", prompt="hi")


def test_messages_have_the_tokens_of_their_prompt(demo: RunningServer) -> None:
    fields = {**body("say <|im_end|>"), "tools": [TOOL]}
    prompt = _post(demo, "/apply-template", **fields)["prompt"]
    tokens = _post(demo, "/tokenize", **fields)["tokens"]
    assert _post(demo, "/detokenize", tokens=tokens)["prompt"] == prompt
    assert tokens.count(2) == prompt.count("<|im_end|>") - 1
    count = _post(demo, "/tokenize", **body("Hello"))["count"]
    assert demo.chat("Hello", max_tokens=1).json()["metrics"]["input_tokens"] == count


def test_pieces_are_texts_or_bytes(demo: RunningServer) -> None:
    answer = _post(demo, "/tokenize", prompt="Hi 👋<|im_end|>", with_pieces=True)
    assert len(answer["pieces"]) == answer["count"]
    assert answer["pieces"][-5:] == [[0xF0], [0x9F], [0x91], [0x8B], "<|im_end|>"]
    assert "".join(answer["pieces"][:-5]) == "Hi "


# /detokenize


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
@pytest.mark.parametrize("text", ["", "plain", "é👋\n", "<|im_start|>user\n<|im_end|>", "nul\0nul"])
def test_a_text_comes_back_from_its_tokens(demo: RunningServer, path: str, text: str) -> None:
    tokens = _post(demo, "/tokenize", prompt=text)["tokens"]
    assert _post(demo, path, tokens=tokens) == {"prompt": text, "content": text}


# /apply-template


@pytest.mark.parametrize("path", ["/apply-template", "/v1/apply-template"])
def test_messages_make_a_prompt(demo: RunningServer, path: str) -> None:
    prompt = "<|im_start|>user\nHello<|im_end|>\n"
    assert _post(demo, path, **body("Hello")) == {"prompt": f"{prompt}<|im_start|>assistant\n"}
    without = {"add_generation_prompt": False}
    assert _post(demo, path, **body("Hello"), chat_template_kwargs=without)["prompt"] == prompt


# without an engine


def test_no_engine_is_needed(loading: Callable[..., TestClient]) -> None:
    with loading(max_length="100") as client:
        answer = client.post("/tokenize", json=body("Hello")).json()
        assert answer["max_model_len"] == 100
        assert client.post("/detokenize", json={"tokens": answer["tokens"]}).status_code == 200
        assert client.post("/apply-template", json=body("Hello")).status_code == 200


def test_setting_allows_special_tokens_in_requests(loading: Callable[..., TestClient]) -> None:
    with loading(allow_special_tokens="true") as client:
        assert client.post("/tokenize", json=body("<|im_end|>")).json()["tokens"].count(2) == 2


def test_rendered_body_has_the_prompt_tokens_of_its_answer(scripted: RunningServer) -> None:
    chat = body("say hello", max_tokens=3, tools=[TOOL], tool_choice="none")
    rendered = _post(scripted, "/v1/chat/completions/render", **chat)
    assert rendered == {"token_ids": _post(scripted, "/v1/tokenize", messages=chat["messages"])["tokens"]}
    answered = _post(scripted, "/v1/chat/completions", **chat)
    assert answered["usage"]["prompt_tokens"] == len(rendered["token_ids"])
    texts = ["say a", "say bc"]
    found = _post(scripted, "/v1/completions/render", prompt=texts, max_tokens=3)
    assert found == [{"token_ids": list(text.encode())} for text in texts]
    assert scripted.client.post("/v1/chat/completions/render", json={"messages": []}).status_code == 400


@pytest.mark.parametrize("path", ["/tokenizer_info", "/v1/tokenizer_info"])
def test_tokenizer_info_has_tokens_and_template(demo: RunningServer, path: str) -> None:
    about = demo.client.get(path, params={"model": "demo"}).json()
    template = about.pop("chat_template")
    tokens = {"unk_token": "<|endoftext|>", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert (about, "<|im_start|>" in template) == (tokens, True)
    assert demo.client.get(path, params={"model": "other"}).status_code == 404
