"""The endpoint of a request."""

from typing import Any

import pytest

from genai_server.pooling_model import Task
from genai_server.ray_serve.endpoints import requested_task


@pytest.mark.parametrize(
    ("method", "path", "fields", "task"),
    [
        ("POST", "/v1/messages", {}, Task.GENERATE),
        ("POST", "/v1/responses", {}, Task.GENERATE),
        ("GET", "/v1/responses/resp_1", {}, Task.GENERATE),
        ("POST", "/embeddings", {}, Task.EMBED),
        ("POST", "/rerank", {}, Task.RERANK),
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
