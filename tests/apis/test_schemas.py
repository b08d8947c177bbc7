"""Bodies without a server: nulls for the fields of other servers, and messages as chat templates get them."""

from typing import Any

import pytest
from pydantic import ValidationError

from genai_server.apis.chat_completions import ChatCompletionRequest
from genai_server.apis.embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from genai_server.apis.messages.schemas import MessagesRequest
from genai_server.apis.own_chat import ChatRequest
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.tokens import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from genai_server.generation.parameters.base import OTHER_FIELDS, StrictModel
from genai_server.generation.parameters.chat_messages import ImagePart, ImageUrl
from genai_server.generation.parameters.completion_body import CompletionRequest

HELLO = [{"role": "user", "content": "Hello"}]


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, **fields}


def _refused_field(body: type[StrictModel], fields: object) -> tuple[int | str, ...]:
    with pytest.raises(ValidationError) as caught:
        body.model_validate(fields)
    assert caught.value.error_count() == 1
    return caught.value.errors()[0]["loc"]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatCompletionRequest, _chat()),
        (ChatRequest, _chat()),
        (CompletionRequest, {"prompt": "x"}),
        (ResponsesRequest, {"input": "x"}),
        (MessagesRequest, _chat(max_tokens=1)),
        (EmbeddingRequest, {"input": "x"}),
        (RerankRequest, {"query": "x", "documents": ["y"]}),
        (ScoreRequest, {"text_1": "x", "text_2": "y"}),
        (TokenizeRequest, {"prompt": "x"}),
        (DetokenizeRequest, {"tokens": [1]}),
        (ApplyTemplateRequest, _chat()),
    ],
)
def test_null_is_taken_for_other_servers_fields_and_for_no_unknown_one(
    model: type[StrictModel], body: dict[str, Any]
) -> None:
    assert model.model_validate(dict.fromkeys(OTHER_FIELDS) | body) == model.model_validate(body)
    assert _refused_field(model, body | {"kv_transfer_params": {}}) == ("kv_transfer_params",)
    assert _refused_field(model, body | {"surprise": None}) == ("surprise",)


def test_a_template_gets_images_without_their_data() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    message = {"role": "user", "content": [{"type": "text", "text": "a", **mark}, {**image, **mark}]}
    (given,) = ChatRequest.model_validate({"messages": [message]}).messages
    assert given.for_template()["content"] == [{"type": "text", "text": "a"}, {"type": "image"}]
    ((index, part),) = given.media
    assert isinstance(part, ImagePart)
    assert (index, part.image_url) == (1, ImageUrl(url="data:image/png;base64,AA==", detail="low"))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "1", "content": None},
    ],
    ids=repr,
)
def test_history_without_content_is_empty_text(message: dict[str, Any]) -> None:
    chat = ChatRequest.model_validate({"messages": [message, {"role": "user", "content": "x"}]})
    assert chat.messages[0].for_template() == {
        **{name: value for name, value in message.items() if name != "tool_calls"},
        **({"tool_calls": []} if "tool_calls" in message else {}),
        "content": "",
    }
