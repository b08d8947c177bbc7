"""Requests as load tools send them get as many tokens as they ask for, with usage, and with no field left out."""

import json
from typing import Any

import pytest

from tests.running_server import RunningServer

_USAGE = {"include_usage": True, "continuous_usage_stats": True}
# What GuideLLM 0.8.1 sends for answers of 16 tokens, besides the fields that are the same for all endpoints.
GUIDELLM: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}],
        "max_completion_tokens": 16,
        "stream_options": _USAGE,
    },
    "/v1/completions": {
        "prompt": "What is the capital of France?",
        "max_tokens": 16,
        "stream_options": _USAGE,
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "What is the capital of France?"}]}],
        "max_output_tokens": 16,
    },
}


@pytest.mark.parametrize("path", GUIDELLM)
def test_guidellm_gets_answers_of_the_requested_length(demo: RunningServer, path: str) -> None:
    body = {"model": "demo", "stream": True, "ignore_eos": True, **GUIDELLM[path]}
    with demo.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        assert "x-genai-ignored" not in response.headers
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line[:7] == "data: {"]
    usage = events[-1].get("response", events[-1])["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 16
