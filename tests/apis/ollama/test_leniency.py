"""Fields that are removed from bodies of Ollama's API, and fields that are left to be refused."""

from copy import deepcopy
from typing import Any

import pytest

from genai_server.apis.ollama.routes import LEFT_OUT
from genai_server.apis.ollama.schemas import EmbedRequest, OllamaChatRequest, ShowRequest
from genai_server.http.leniency import remove_unknown_keys


@pytest.mark.parametrize(
    "body",
    [None, [], "text", {"options": 1}, {"messages": 1}, {"messages": [1]}, {"images": 1}, {"prompt": 1, "images": [1]}],
)
def test_a_body_of_another_form_stays_as_it_is(body: Any) -> None:
    given = deepcopy(body)
    assert (LEFT_OUT.remove_from(body), body) == ([], given)


def test_unknown_keys_are_named_at_every_level() -> None:
    call = {"function": {"name": "f", "arguments": {"any": {"key": 1}}, "spoken": 1}, "opts": 1}
    tool = {"type": "function", "items": {}, "function": {"name": "f", "parameters": {"any": 1}, "handler": "x"}}
    body = {
        "user": "me",
        "nothing": None,
        "options": {"num_ctx": 4096, "top_k": 3, "low_vram": None},
        "messages": [{"role": "assistant", "tool_calls": [call], "uuid": 1}, {"role": "user", "uuid": 2}],
        "tools": [tool],
        "format": {"any": 1},
    }
    assert remove_unknown_keys(body, "", OllamaChatRequest) == [
        "user",
        "options.num_ctx",
        "messages[].uuid",
        "messages[].tool_calls[].opts",
        "messages[].tool_calls[].function.spoken",
        "tools[].items",
        "tools[].function.handler",
    ]
    OllamaChatRequest.model_validate(body)
    assert remove_unknown_keys({"input": "x", "options": {"num_ctx": 1}}, "", EmbedRequest) == ["options"]
    assert remove_unknown_keys({"model": "x", "system": "y"}, "", ShowRequest) == ["system"]
