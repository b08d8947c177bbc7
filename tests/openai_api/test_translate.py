"""From the wire to the vocabulary and back: defaults, limits, and OpenAI's forms."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from genai_server.errors import InvalidField, PromptTooLong
from genai_server.generation import FinishReason, GenerationRequest, ModelInfo, Sampling
from genai_server.openai_api.schemas import ChatCompletionRequest, ChatRequest
from genai_server.openai_api.translate import (
    ChatCompletionBuilder,
    Policy,
    openai_reason,
    to_generation_request,
    to_sampling,
    usage,
)

HELLO = [{"role": "user", "content": "Hello"}]
DEFAULTS = Sampling(temperature=0.7, top_k=50, top_p=0.9, min_p=0.05, repetition_penalty=1.1)
MODEL = ModelInfo(context_length=100, vocab_size=1000, eos_token_ids=[2], defaults=DEFAULTS)


def _request(num_prompt: int = 10, max_length: int = 1000, **fields: Any) -> GenerationRequest:
    body = ChatCompletionRequest.model_validate({"messages": HELLO, **fields})
    policy = Policy(max_length)
    return to_generation_request(body, [5] * num_prompt, MODEL, request_id="r1", policy=policy)


# lengths


def test_without_max_tokens_the_answer_may_fill_what_is_left() -> None:
    request = _request(10)
    assert (request.max_tokens, request.max_length) == (90, 100)


@pytest.mark.parametrize(("max_length", "limit"), [(40, 40), (100, 100), (101, 100)])
def test_the_smaller_of_operators_and_models_limit_holds(max_length: int, limit: int) -> None:
    assert _request(10, max_length).max_length == limit


def test_a_prompt_that_leaves_room_for_one_token_is_taken() -> None:
    assert _request(99).max_tokens == 1


@pytest.mark.parametrize("num_prompt", [100, 101])
def test_a_prompt_that_leaves_no_room_is_refused_with_limit_and_length(num_prompt: int) -> None:
    with pytest.raises(PromptTooLong, match=rf"\b{num_prompt}\b.*\b100\b") as caught:
        _request(num_prompt)
    assert caught.value.param == "messages"


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        _request(0)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_max_tokens_bound_the_answer(field: str) -> None:
    assert _request(**{field: 1}).max_tokens == 1
    assert _request(**{field: 100}).max_tokens == 100


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_allowed_are_refused_by_field_limit_and_value(field: str) -> None:
    with pytest.raises(InvalidField, match=rf"^{field} .*\b40\b.*\b41\b") as caught:
        _request(max_length=40, **{field: 41})
    assert caught.value.param == field


def test_both_names_at_once_are_refused_even_when_they_agree() -> None:
    with pytest.raises(InvalidField, match="not both"):
        _request(max_tokens=5, max_completion_tokens=5)


# everything else


def test_prompt_and_name_are_handed_on() -> None:
    request = _request(3)
    assert (request.prompt, request.request_id) == ([5, 5, 5], "r1")


@pytest.mark.parametrize(("given", "meant"), [(None, False), (False, False), (True, True)])
def test_the_end_token_ends_unless_it_shall_be_ignored(given: bool | None, meant: bool) -> None:
    assert _request(ignore_eos=given).ignore_eos is meant


@pytest.mark.parametrize(("given", "meant"), [(None, True), (False, False), (True, True)])
def test_a_past_is_used_again_unless_it_shall_not(given: bool | None, meant: bool) -> None:
    assert _request(cache_prompt=given).cache_prompt is meant


@pytest.mark.parametrize("operators", [True, False])
def test_an_answer_is_exact_where_the_operator_or_the_request_wants_it(operators: bool) -> None:
    body = {"messages": HELLO}
    exact = [
        to_generation_request(
            ChatCompletionRequest.model_validate(body | given),
            [5],
            MODEL,
            request_id="r1",
            policy=Policy(1000, operators),
        ).exact
        for given in ({}, {"exact": None}, {"exact": True}, {"exact": False})
    ]
    assert exact == [operators, operators, True, False]


def test_a_priority_is_handed_on_and_is_none_if_left_out() -> None:
    assert [_request(priority=given).priority for given in (None, -7, 3)] == [0, -7, 3]


def _sampling(**fields: Any) -> Sampling:
    return to_sampling(ChatRequest.model_validate({"messages": HELLO, **fields}), DEFAULTS)


def test_what_a_request_leaves_out_has_the_models_value() -> None:
    assert _request(seed=None, temperature=None).sampling == DEFAULTS


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0), ("repetition_penalty", 1.0), ("seed", 0)],
)
def test_a_given_value_replaces_the_models_even_if_it_is_zero(field: str, value: float) -> None:
    changed = _sampling(**{field: value})
    assert getattr(changed, field) == value
    others = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"} - {field}
    assert all(getattr(changed, other) == getattr(DEFAULTS, other) for other in others)


def test_all_given_values_arrive_in_their_places() -> None:
    given = {"temperature": 0.1, "top_k": 2, "top_p": 0.3, "min_p": 0.4, "repetition_penalty": 0.5, "seed": 6}
    assert _sampling(**given) == Sampling(0.1, 2, 0.3, 0.4, 0.5, 6)


# answers


def test_a_terminated_answer_is_cut_in_openais_words_and_true_in_ours() -> None:
    assert openai_reason(FinishReason.TERMINATED) == {"finish_reason": "length", "genai_finish_reason": "terminated"}


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_openais_own_reasons_stand_alone(reason: FinishReason) -> None:
    assert openai_reason(reason) == {"finish_reason": reason.value}


def test_usage_adds_up() -> None:
    assert usage(3, 4, 2) == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize("reason", FinishReason)
def test_a_whole_answer_is_one_of_openais(reason: FinishReason) -> None:
    built = ChatCompletionBuilder("id1", "m", 1234).complete("text", reason, usage(3, 4))
    read = ChatCompletion.model_validate(built)
    assert (read.id, read.model, read.created, read.object) == ("id1", "m", 1234, "chat.completion")
    assert [choice.message.content for choice in read.choices] == ["text"]
    assert read.choices[0].finish_reason in ("stop", "length")
    assert read.usage is not None
    assert read.usage.total_tokens == 7


def _stream(*, with_usage: bool) -> list[dict[str, Any]]:
    build = ChatCompletionBuilder("id1", "m", 1234, with_usage=with_usage)
    return [build.first(), build.text("Hel"), build.text("lo"), build.last(FinishReason.STOP)]


def test_the_chunks_of_a_stream_are_openais_and_make_up_the_answer() -> None:
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in _stream(with_usage=False)]
    assert {(chunk.id, chunk.model, chunk.created, chunk.object) for chunk in chunks} == {
        ("id1", "m", 1234, "chat.completion.chunk")
    }
    choices = [chunk.choices[0] for chunk in chunks]
    assert [choice.delta.role for choice in choices] == ["assistant", None, None, None]
    assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
    assert [choice.finish_reason for choice in choices] == [None, None, None, "stop"]


def test_usage_is_null_in_the_chunks_of_those_who_asked_and_absent_for_the_others() -> None:
    assert [chunk["usage"] for chunk in _stream(with_usage=True)] == [None] * 4
    assert not [chunk for chunk in _stream(with_usage=False) if "usage" in chunk]


def test_the_chunk_of_usage_has_no_choices() -> None:
    built = ChatCompletionBuilder("id1", "m", 1234, with_usage=True).usage(usage(1, 2))
    read = ChatCompletionChunk.model_validate(built)
    assert read.choices == []
    assert read.usage is not None
    assert read.usage.total_tokens == 3
