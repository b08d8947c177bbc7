"""The limits of bodies: a field that is unknown, of another JSON type or out of range is refused by name."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from genai_server.apis.admin.schemas import RuntimeOptionsRequest
from genai_server.apis.chat_completions.schemas import ChatCompletionRequest
from genai_server.apis.embeddings.schemas import EmbeddingRequest, RerankRequest, ScoreRequest
from genai_server.apis.messages.schemas import MessagesRequest
from genai_server.apis.own_chat.routes import ChatRequest
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.tokens.schemas import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from genai_server.generation.parameters.base import Wire, WithoutEffect
from genai_server.generation.parameters.chat_messages import ChatParameters, ImagePart, ImageUrl
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.generation.parameters.other_servers import OTHER_FIELDS

HELLO = [{"role": "user", "content": "Hello"}]


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, **fields}


def _refused_field(body: type[Wire], fields: object) -> tuple[int | str, ...]:
    with pytest.raises(ValidationError) as caught:
        body.model_validate(fields)
    assert caught.value.error_count() == 1
    return caught.value.errors()[0]["loc"]


# chats


def test_messages_alone_are_a_request() -> None:
    given = ChatRequest.model_validate(_chat()).model_dump(exclude_none=True)
    assert given == {"messages": HELLO}


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        (None, ()),
        ([], ()),
        ("Hello", ()),
        (["Hello"], (0,)),
        ([{"content": "Hello"}], (0, "role")),
        ([*HELLO, {"role": "robot", "content": "x"}], (1, "role")),
        ([{"role": "user", "content": "x", "mood": "sad"}], (0, "mood")),
    ],
    ids=repr,
)
def test_wrong_messages_are_refused_where_they_are_wrong(messages: object, where: tuple[int | str, ...]) -> None:
    assert _refused_field(ChatRequest, {"messages": messages}) == ("messages", *where)


def test_messages_are_required() -> None:
    assert _refused_field(ChatRequest, {}) == ("messages",)


@pytest.mark.parametrize("content", ["", " ", "\n", "🦜", "x" * 100_000])
def test_any_text_is_a_content(content: str) -> None:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": content}]})
    assert body.messages[0].content == content


@pytest.mark.parametrize("body", [ChatRequest, ChatCompletionRequest, TokenizeRequest, ApplyTemplateRequest])
def test_messages_and_tools_have_limits(body: type[Wire]) -> None:
    for field, most, one in (("messages", 4096, HELLO[0]), ("tools", 512, TOOL)):
        body.model_validate(_chat(**{field: [one] * most}))
        assert _refused_field(body, _chat(**{field: [one] * (most + 1)})) == (field,)


@pytest.mark.parametrize(
    ("field", "taken", "refused"),
    [
        ("temperature", [0, 0.0, 2, 2.0], [-0.01, 2.01, "1", True]),
        ("top_p", [0, 0.0, 0.001, 1, 1.0], [1.01, -1, -0.01, False]),
        ("top_k", [0, 1_000_000], [-2, 1_000_001, 1.0, "5", True]),
        ("min_p", [0, 1.0], [-0.1, 1.1]),
        ("repetition_penalty", [0.01, 10], [0, 0.0, -1, 10.1, 1e-300]),
        ("seed", [0, 2**63 - 1, -(2**63)], [2**63, -(2**63) - 1, 1.0, "7"]),
        ("n", [1], [0, 2, "1"]),
        ("frequency_penalty", [-2, 2.0], [-2.1, 2.1, "1"]),
        ("repeat_last_n", [-1, 0, 1_000_000], [-2, 1_000_001, 1.5, "1"]),
        ("presence_penalty", [-2, 2.0], [-2.1, 2.1, "1"]),
        ("min_tokens", [0, 5], [-1, 1.5]),
        ("logprobs", [True, False], [1, "true"]),
        ("logit_bias", [{}, {"0": 100}, {"7": -100.0}], [{"x": 1}, {"-1": 1}, {"²": 1}, [1]]),
        ("parallel_tool_calls", [True, False], [1]),
        ("chat_template_kwargs", [{}, {"a": [1]}], [[], "x"]),
        ("max_tokens", [1, 10**9], [0, -5, 1.5, "10", True]),
        ("ignore_eos", [True, False], [1, "true"]),
        ("model", ["any"], [5, ["any"]]),
        ("device", ["cpu"], [0]),
    ],
)
def test_parameters_are_accepted_within_their_bounds_only(
    field: str, taken: list[object], refused: list[object]
) -> None:
    for value in [*taken, None]:
        assert getattr(ChatRequest.model_validate(_chat(**{field: value})), field) == value
    for value in refused:
        assert _refused_field(ChatRequest, _chat(**{field: value})) == (field,), value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_value_that_is_not_a_number_is_refused(field: str, number: str) -> None:
    assert _refused_field(ChatRequest, json.loads(json.dumps(_chat()).replace("{", f'{{"{field}": {number}, ', 1))) == (
        field,
    )


@pytest.mark.parametrize("field", ["Temperature", "guided_schema", "input"])
@pytest.mark.parametrize("body", [ChatRequest, ChatCompletionRequest])
def test_an_unknown_field_is_refused_even_when_null(body: type[Wire], field: str) -> None:
    assert _refused_field(body, _chat(**{field: None})) == (field,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "alloy"}),
        ("modalities", ["audio"]),
        ("verbosity", "low"),
        ("web_search_options", {}),
    ],
)
def test_unsupported_openai_fields_are_refused(field: str, value: object) -> None:
    assert _refused_field(ChatCompletionRequest, _chat(**{field: value}))[0] == field
    ChatCompletionRequest.model_validate(_chat(**{field: None}))


def test_openais_default_of_unsupported_fields_is_accepted() -> None:
    for field, value in {"verbosity": "medium", "modalities": ["text"]}.items():
        ChatCompletionRequest.model_validate(_chat(**{field: value}))


@pytest.mark.parametrize("field", [*WithoutEffect.model_fields, "store"])
def test_fields_without_effect_accept_any_value(field: str) -> None:
    for value in (None, True, "x", 5, {"a": [1]}):
        ChatCompletionRequest.model_validate(_chat(**{field: value}))


def test_fields_without_effect_are_exactly_these() -> None:
    assert set(WithoutEffect.model_fields) == {
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }


def test_router_fields_are_accepted_at_their_neutral_value() -> None:
    kept = {"skip_special_tokens": True, "no_stop_trim": False, "return_hidden_states": False}
    of_chats = {"continue_final_message": False, "include_reasoning": True}
    of_chats |= {"separate_reasoning": True, "stream_reasoning": True, "add_generation_prompt": True}
    ChatCompletionRequest.model_validate(_chat(**kept, **of_chats))
    CompletionRequest.model_validate({"prompt": "x", **kept})
    for field, value in (kept | of_chats).items():
        assert _refused_field(ChatCompletionRequest, _chat(**{field: not value})) == (field,)
        assert _refused_field(ChatRequest, _chat(**{field: value})) == (field,)
    for field, value in kept.items():
        assert _refused_field(CompletionRequest, {"prompt": "x", field: not value}) == (field,)


def test_fields_that_ask_for_what_happens_anyway_are_accepted() -> None:
    asked = {"best_of": 1, "include_stop_str_in_output": False, "top_k": -1}
    assert ChatCompletionRequest.model_validate(_chat(**asked)).top_k == 0
    assert CompletionRequest.model_validate({"prompt": "x", **asked}).top_k == 0
    for field, value in {"best_of": 2, "top_k": -2}.items():
        assert _refused_field(ChatCompletionRequest, _chat(**{field: value})) == (field,)
    assert _refused_field(CompletionRequest, {"prompt": "x", "top_k": -2}) == ("top_k",)


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
def test_null_is_taken_for_other_servers_fields_and_for_no_unknown_one(model: type[Wire], body: dict[str, Any]) -> None:
    assert model.model_validate(dict.fromkeys(OTHER_FIELDS) | body) == model.model_validate(body)
    assert _refused_field(model, body | {"kv_transfer_params": {}}) == ("kv_transfer_params",)
    assert _refused_field(model, body | {"surprise": None}) == ("surprise",)


@pytest.mark.parametrize("stop", ["x", ["a"], ["a", "b", "c", "x" * 1024], list(map(str, range(64)))])
def test_up_to_64_stop_strings_are_accepted(stop: str | list[str]) -> None:
    assert ChatRequest.model_validate(_chat(stop=stop)).stop_strings == ([stop] if isinstance(stop, str) else stop)


@pytest.mark.parametrize("stop", ["", [], ["a", ""], list(map(str, range(65))), 5, [5], "x" * 1025, ["a", "x" * 1025]])
def test_other_stop_strings_are_refused(stop: object) -> None:
    with pytest.raises(ValidationError):
        ChatRequest.model_validate(_chat(stop=stop))


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "developer", "content": "x", "name": "Ann"},
        {"role": "assistant", "content": "x", "reasoning_content": "y", "refusal": None},
        {"role": "assistant", "content": "x", "provider_specific_fields": {"refusal": None}},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ],
)
def test_messages_of_every_kind_are_accepted(message: dict[str, Any]) -> None:
    given = ChatRequest.model_validate({"messages": [message]}).messages[0].for_template()
    assert given["role"] == message["role"]
    assert given["content"] == message.get("content")
    assert "provider_specific_fields" not in given


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
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": "a\ud800b"},
        {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": "most"}}]},
        {"role": "user", "content": [{"type": "input_audio"}]},
        {"role": "user", "content": "x", "tool_call_id": "1"},
        {"role": "user", "content": "x", "tool_calls": []},
        {"role": "tool", "content": "3"},
    ],
    ids=repr,
)
def test_a_message_must_fit_its_role(message: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ChatRequest.model_validate({"messages": [message]})


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


@pytest.mark.parametrize("arguments", ["", "{", '{"city": ', "[1]", "Paris", '{"a": NaN}'])
def test_arguments_of_earlier_calls_are_any_text(arguments: str) -> None:
    """A model's call may have been cut off, and its function's name may be an invention."""
    call = {"id": "1", "function": {"name": "get weather!", "arguments": arguments}}
    chat = ChatRequest.model_validate({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    (given,) = chat.messages[0].tool_calls or []
    assert given.function.model_dump() == call["function"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream_options": {}}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "text", "json_schema": {"name": "x"}}}, "json_schema"),
    ],
    ids=repr,
)
def test_fields_that_need_each_other_are_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate(_chat(**fields))
    assert caught.value.errors()[0]["ctx"]["field"] == field


@pytest.mark.parametrize(
    "given", [{}, {"json": {}, "regex": "a"}, {"choice": []}, {"regex": ""}, {"choice": [""]}, {"lark": "x"}], ids=repr
)
def test_a_structure_is_given_in_one_way(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ChatRequest.model_validate(_chat(structured_outputs=given))


# completions


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), ("", [""]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2, 3]], [[1], [2, 3]])],
    ids=repr,
)
def test_prompts_are_texts_or_token_ids_one_or_several(prompt: object, prompts: list[object]) -> None:
    assert CompletionRequest.model_validate({"prompt": prompt}).prompts == prompts


@pytest.mark.parametrize("prompt", [None, [], [[]], [-1], ["a", 1], [1, "a"], 5, {}], ids=repr)
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate({"prompt": prompt})


@pytest.mark.parametrize(
    "fields",
    [{"suffix": "x", "echo": True}, {"best_of": 2}, {"max_tokens": 0}, {"logprobs": True}, {"logprobs": 21}],
    ids=repr,
)
def test_unsupported_completion_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate({"prompt": "x", **fields})


@pytest.mark.parametrize("field", ["stream_options", "include_metrics"])
def test_fields_of_openais_streams_are_for_its_endpoint_only(field: str) -> None:
    assert _refused_field(ChatRequest, _chat(**{field: None})) == (field,)
    assert getattr(ChatCompletionRequest.model_validate(_chat(**{field: None})), field) is None


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"stream": "true"}, ("stream",)),
        ({"stream": 1}, ("stream",)),
        ({"max_completion_tokens": 0}, ("max_completion_tokens",)),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, ("stream_options", "include_usage")),
        ({"stream": True, "stream_options": {"surprise": True}}, ("stream_options", "surprise")),
        ({"stream_options": True}, ("stream_options",)),
    ],
    ids=repr,
)
def test_openais_own_fields_are_checked(fields: dict[str, object], where: tuple[str, ...]) -> None:
    assert _refused_field(ChatCompletionRequest, _chat(**fields)) == where


# runtime options


@pytest.mark.parametrize("prefix", ["0", "1", "a", "slow-run_2.x", "x" * 64])
def test_a_name_is_a_prefix_for_profiles(prefix: str) -> None:
    assert RuntimeOptionsRequest.model_validate({"enable_profiling": prefix}).enable_profiling == prefix


@pytest.mark.parametrize(
    "prefix",
    ["", ".hidden", "../up", "a/b", "a\\b", "/tmp/x", "C:x", "a b", "a\n", "a\0", "é", "x" * 65, "-a", "٣", True, 1],
)
def test_path_is_not_a_profile_prefix(prefix: object) -> None:
    assert _refused_field(RuntimeOptionsRequest, {"enable_profiling": prefix}) == ("enable_profiling",)


@pytest.mark.parametrize("value", ["2", "", "true", 1, 0, True])
def test_terminating_is_on_or_off(value: object) -> None:
    assert _refused_field(RuntimeOptionsRequest, {"terminate_session": value}) == ("terminate_session",)


@pytest.mark.parametrize(
    "fields",
    [{"request_id": ""}, {"request_id": 5}, {"request_id": "\ud800"}, {"device": 0}, {"terminate": "1"}],
    ids=repr,
)
def test_runtime_options_refuse_invalid_targets(fields: dict[str, object]) -> None:
    assert _refused_field(RuntimeOptionsRequest, fields) == tuple(fields)


@pytest.mark.parametrize("body", [ChatRequest, ChatCompletionRequest])
@pytest.mark.parametrize(
    "content", ["as before", [{"type": "text", "text": "as "}, {"type": "text", "text": "before"}]]
)
def test_a_prediction_is_a_text_or_its_parts(body: type[ChatParameters], content: object) -> None:
    found = body.model_validate(_chat(prediction={"type": "content", "content": content})).prediction
    assert found is not None
    assert found.text == "as before"


@pytest.mark.parametrize(
    ("prediction", "field"),
    [
        ("as before", ("prediction",)),
        ({"content": "x"}, ("prediction", "type")),
        ({"type": "content"}, ("prediction", "content")),
        ({"type": "text", "content": "x"}, ("prediction", "type")),
        ({"type": "content", "content": "x", "more": 1}, ("prediction", "more")),
    ],
)
def test_another_prediction_is_refused_by_its_field(prediction: object, field: tuple[str, ...]) -> None:
    assert _refused_field(ChatCompletionRequest, _chat(prediction=prediction))[: len(field)] == field
