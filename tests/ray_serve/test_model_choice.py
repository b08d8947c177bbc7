"""The endpoint of a request, and the model of a deployment that it chooses."""

from typing import Any

import pytest

from genai_server.errors import ModelNotFound, TaskUnsupported
from genai_server.model_files.pooling_model import Task
from genai_server.ray_serve.model_choice import ModelNames, requested_task
from tests.given_settings import given


@pytest.mark.parametrize(
    ("method", "path", "fields", "task"),
    [
        ("POST", "/v1/messages", {}, Task.GENERATE),
        ("POST", "/v1/responses", {}, Task.GENERATE),
        ("GET", "/v1/responses/resp_1", {}, Task.GENERATE),
        ("POST", "/v1/decisions", {}, Task.GENERATE),
        ("POST", "/embeddings", {}, Task.EMBED),
        ("POST", "/rerank", {}, Task.RERANK),
        ("POST", "/v1/score", {"text_1": "x"}, Task.RERANK),
        ("POST", "/v1/score", {"label_token_ids": [1]}, Task.GENERATE),
        ("POST", "/classify", {}, Task.GENERATE),
        ("POST", "/v1/audio/translations", {}, Task.TRANSCRIBE),
        ("POST", "/tokenize", {"prompt": "x"}, None),
        ("POST", "/tokenize", {"messages": []}, Task.GENERATE),
        ("POST", "/detokenize", {"tokens": [1]}, None),
        # Ollama's generations do not depend on the task on a single server, either.
        ("POST", "/api/chat", {}, None),
        ("POST", "/v1/nothing", {}, None),
    ],
)
def test_the_task_of_a_request_is_that_of_its_endpoint(
    method: str, path: str, fields: dict[str, Any], task: Task | None
) -> None:
    assert requested_task({"type": "http", "method": method, "path": path, "headers": []}, fields) is task


def _names(aliases: str = "gpt=big,s=small", **tasks: Task) -> ModelNames:
    settings = given(models="small=/s,big=/b", model_aliases=aliases)
    return ModelNames(settings, {"small": Task.GENERATE, "big": Task.GENERATE} | tasks)


def test_a_request_chooses_a_model_by_all_its_names() -> None:
    names = _names()
    assert {names.choose(id) for id in (None, "small", "s", 7)} == {"small"}
    assert {names.choose(id) for id in ("big", "gpt", "big:tax", "gpt:tax", "big:latest", "hf.co/gpt")} == {"big"}
    with pytest.raises(ModelNotFound, match='"x" is not served; "small", "big" are'):
        names.choose("x")
    assert _names("*=big").choose("x") == "big"
    assert {_names().choose(id) for id in ("onnx-genai", "onnx-genai:latest", "onnx-genai:law")} == {"small"}
    assert _names("*=big").choose("onnx-genai") == "big"
    assert _names("onnx-genai=big").choose("onnx-genai") == "big"


def test_default_model_is_the_first_for_the_task_and_another_task_is_refused() -> None:
    names = _names(small=Task.EMBED)
    tasks = {task: names.choose(None, task) for task in (None, Task.EMBED, Task.GENERATE)}
    assert tasks == {None: "small", Task.EMBED: "small", Task.GENERATE: "big"}
    # Its replica replies that no model supports the task.
    assert names.choose(None, Task.RERANK) == "small"
    with pytest.raises(TaskUnsupported, match='model "big" makes no embeddings; "small" can'):
        _names(small=Task.EMBED).choose("gpt", Task.EMBED)
