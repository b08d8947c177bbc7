"""OpenAI's endpoints, through OpenAI's own client where it has a say."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.running_server import RunningServer, body


@pytest.fixture(scope="module")
def client(scripted: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_completion_has_openais_form(client: OpenAI) -> None:
    completion = client.chat.completions.create(model="onnx-genai", messages=[{"role": "user", "content": "say hi"}])
    assert completion.object == "chat.completion"
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].message.content == "hi"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 2
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 2


def test_a_stream_of_chunks_makes_the_same_answer(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="onnx-genai", messages=[{"role": "user", "content": "count 5"}], stream=True
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "1, 2, 3, 4, 5"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_in_a_last_chunk_without_choices_when_asked_for(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="onnx-genai",
            messages=[{"role": "user", "content": "say abc"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


def test_a_stream_ends_with_done(scripted: RunningServer) -> None:
    with scripted.stream("say x", path="/v1/chat/completions", stream=True) as events:
        assert list(events)[-1] == "[DONE]"


def test_max_completion_tokens_is_max_tokens(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model="onnx-genai", messages=[{"role": "user", "content": "say hello"}], max_completion_tokens=2
    )
    assert completion.choices[0].message.content == "he"
    assert completion.choices[0].finish_reason == "length"


def test_an_error_in_a_stream_reaches_openais_client_as_an_exception(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="onnx-genai", messages=[{"role": "user", "content": "fail at 1; say hello"}], stream=True
    )
    with pytest.raises(openai.APIError, match="scripted failure"):
        list(stream)


def test_bad_input_reaches_openais_client_as_its_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(
            model="onnx-genai", messages=[{"role": "user", "content": "x"}], extra_body={"max_tokens": 0}
        )
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 5000}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"stream_options": {"include": True}}, "stream_options.include"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_field_that_is_wrong_or_not_honoured_is_named(
    scripted: RunningServer, fields: dict[str, object], param: str
) -> None:
    response = scripted.client.post("/v1/chat/completions", json=body("x", **fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_the_id_of_an_answer_is_the_request_id(scripted: RunningServer) -> None:
    with scripted.stream("say x", path="/v1/chat/completions", stream=True) as events:
        ids = {json.loads(event)["id"] for event in events if event != "[DONE]"}
    assert ids == {events.response.headers["x-request-id"]}
