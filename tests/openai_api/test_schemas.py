"""What a body may hold: a field that is unknown, of another JSON type or out of range is refused and named."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from genai_server.openai_api.schemas import ChatCompletionRequest, ChatRequest, RuntimeOptionsRequest, Wire

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
        ([{"role": "user"}], (0, "content")),
        ([{"content": "Hello"}], (0, "role")),
        ([*HELLO, {"role": "robot", "content": "x"}], (1, "role")),
        ([{"role": "user", "content": None}], (0, "content")),
        ([{"role": "user", "content": 5}], (0, "content")),
        ([{"role": "user", "content": "x", "mood": "sad"}], (0, "mood")),
        ([{"role": "user", "content": "a\ud800b"}], (0, "content")),
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


@pytest.mark.parametrize(
    ("field", "taken", "refused"),
    [
        ("temperature", [0, 0.0, 2, 2.0], [-0.01, 2.01, "1", True]),
        ("top_p", [0.001, 1, 1.0], [0, 0.0, 1.01, -1, False]),
        ("top_k", [0, 1_000_000], [-1, 1_000_001, 1.0, "5", True]),
        ("min_p", [0, 1.0], [-0.1, 1.1]),
        ("repetition_penalty", [0.01, 10], [0, 0.0, -1, 10.1, 1e-300]),
        ("seed", [0, 2**63 - 1], [-1, 2**63, 1.0, "7"]),
        ("max_tokens", [1, 10**9], [0, -5, 1.5, "10", True]),
        ("ignore_eos", [True, False], [1, "true"]),
        ("model", ["any"], [5, ["any"]]),
        ("device", ["cpu"], [0]),
    ],
)
def test_a_parameter_is_taken_within_its_bounds_and_refused_beyond(
    field: str, taken: list[object], refused: list[object]
) -> None:
    for value in [*taken, None]:
        assert getattr(ChatRequest.model_validate(_chat(**{field: value})), field) == value
    for value in refused:
        assert _refused_field(ChatRequest, _chat(**{field: value})) == (field,), value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_a_number_that_is_none_is_refused(field: str, number: str) -> None:
    assert _refused_field(ChatRequest, json.loads(json.dumps(_chat()).replace("{", f'{{"{field}": {number}, ', 1))) == (
        field,
    )


@pytest.mark.parametrize("field", ["n", "stop", "logprobs", "tools", "presence_penalty", "Temperature"])
@pytest.mark.parametrize("body", [ChatRequest, ChatCompletionRequest])
def test_a_field_that_is_not_honoured_is_refused_even_when_null(body: type[Wire], field: str) -> None:
    assert _refused_field(body, _chat(**{field: None})) == (field,)


@pytest.mark.parametrize("field", ["stream", "stream_options", "max_completion_tokens"])
def test_openais_own_fields_are_for_openais_endpoint_only(field: str) -> None:
    assert _refused_field(ChatRequest, _chat(**{field: None})) == (field,)
    assert getattr(ChatCompletionRequest.model_validate(_chat(**{field: None})), field) is None


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"stream": "true"}, ("stream",)),
        ({"stream": 1}, ("stream",)),
        ({"max_completion_tokens": 0}, ("max_completion_tokens",)),
        ({"stream_options": {"include_usage": "yes"}}, ("stream_options", "include_usage")),
        ({"stream_options": {"include_obfuscation": True}}, ("stream_options", "include_obfuscation")),
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
def test_a_path_or_anything_else_is_no_prefix(prefix: object) -> None:
    assert _refused_field(RuntimeOptionsRequest, {"enable_profiling": prefix}) == ("enable_profiling",)


@pytest.mark.parametrize("value", ["2", "", "true", 1, 0, True])
def test_terminating_is_on_or_off(value: object) -> None:
    assert _refused_field(RuntimeOptionsRequest, {"terminate_session": value}) == ("terminate_session",)


@pytest.mark.parametrize(
    "fields",
    [{"request_id": ""}, {"request_id": 5}, {"request_id": "\ud800"}, {"device": 0}, {"terminate": "1"}],
    ids=repr,
)
def test_whom_it_concerns_must_be_named_properly(fields: dict[str, object]) -> None:
    assert _refused_field(RuntimeOptionsRequest, fields) == tuple(fields)
