"""Models without a chat template: served for raw prompts, and for chats with a configured template."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.model_edits import base_model
from tests.running_server import RunningServer, clean_environment, refusal, run_command, run_server, wait_until

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nWhat is the capital of France?\n\n### Response:\n"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a base model, and with a copy that has a template."""
    folder = tmp_path_factory.mktemp("base")
    model = base_model(folder / "model")
    settings = {"GENAI_MODELS": f"base={model},given={model}", "GENAI_CHAT_TEMPLATE": "given=alpaca"}
    with run_server(folder, settings=settings) as running:
        wait_until(lambda: {entry["state"] for entry in running.client.get("/v1/models").json()["data"]} == {"ready"})
        yield running


def test_base_model_continues_raw_prompts(server: RunningServer) -> None:
    response = server.client.post("/v1/completions", json={"model": "base", "prompt": "The capital", "max_tokens": 3})
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, "messages"),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True, "reasoning_effort": "low"}, "messages"),
        ("/v1/chat", {"messages": MESSAGES}, "messages"),
        ("/v1/chat/stream", {"messages": MESSAGES}, "messages"),
        ("/v1/responses", {"input": "x"}, "input"),
        ("/v1/responses/input_tokens", {"input": "x"}, "input"),
        ("/tokenize", {"messages": MESSAGES}, "messages"),
        ("/apply-template", {"messages": MESSAGES}, "messages"),
    ],
)
def test_chat_needs_a_template(server: RunningServer, path: str, fields: dict[str, Any], param: str) -> None:
    response = server.client.post(path, json={"model": "base", **fields})
    assert refusal(response) == (400, "no_chat_template", param)
    assert "GENAI_CHAT_TEMPLATE" in response.text


def test_models_show_whether_they_chat_and_the_log_names_others(server: RunningServer) -> None:
    models = server.client.get("/v1/models").json()["data"]
    assert {entry["id"]: entry["chat"] for entry in models} == {"base": False, "given": True}
    assert "model base has no chat template" in server.log()
    assert "model given has no chat template" not in server.log()


def test_a_model_that_is_given_a_template_chats_in_its_form(server: RunningServer) -> None:
    prompt = server.client.post("/apply-template", json={"model": "given", "messages": MESSAGES}).json()["prompt"]
    assert prompt.endswith(ALPACA)
    answer = server.client.post("/v1/chat/completions", json={"model": "given", "messages": MESSAGES, "max_tokens": 3})
    assert answer.status_code == 200


def test_a_model_that_is_loaded_later_can_be_given_one(server: RunningServer, tmp_path: Path) -> None:
    model = str(base_model(tmp_path / "later"))
    wrong = server.client.post(
        "/v1/admin/models/load", json={"name": "later", "path": model, "chat_template": "./none.jinja"}
    )
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "chat_template")
    assert "./none.jinja: no such file" in wrong.json()["error"]["message"]
    loaded = server.client.post(
        "/v1/admin/models/load", json={"name": "later", "path": model, "chat_template": "phi-2"}
    )
    assert loaded.json()["chat"] is True
    prompt = server.client.post("/apply-template", json={"model": "later", "messages": MESSAGES}).json()["prompt"]
    assert prompt == "Instruct: What is the capital of France?\nOutput:"
    assert server.client.post("/v1/admin/models/unload", json={"name": "later", "timeout": 0}).status_code == 200


def test_terminal_chat_reports_the_missing_template_at_its_start(server: RunningServer) -> None:
    arguments = ["chat", str(server.client.base_url), "--model", "base"]
    done = run_command(*arguments, environment=clean_environment())
    assert done.returncode == 1
    assert "base has no chat template: it takes raw prompts (/v1/completions)" in done.stderr
    assert ">" not in done.stdout
