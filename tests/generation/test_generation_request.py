"""Engine requests from bodies: defaults and limits."""

import re
from typing import Any

import msgspec
import pytest

from genai_server.apis.chat_completions.schemas import ChatCompletionRequest
from genai_server.apis.own_chat.routes import ChatRequest
from genai_server.errors import InvalidField, PromptTooLong
from genai_server.generation.generate import nth_choice, to_generation_request, to_sampling, with_default_limit
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling

HELLO = [{"role": "user", "content": "Hello"}]
DEFAULTS = Sampling(temperature=0.7, top_k=50, top_p=0.9, min_p=0.05, repetition_penalty=1.1)
MODEL = ModelInfo(context_length=100, vocab_size=1000, eos_token_ids=[2], defaults=DEFAULTS)


def _made(
    body: ChatCompletionRequest | CompletionRequest, prompt: list[int], model: ModelInfo, **options: Any
) -> GenerationRequest:
    return to_generation_request(body, prompt, model, to_sampling(body, model), request_id="r1", **options)


def _request(num_prompt: int = 10, limit: int = 0, **fields: Any) -> GenerationRequest:
    body = ChatCompletionRequest.model_validate({"messages": HELLO, **fields})
    model = msgspec.structs.replace(MODEL, limit=limit, limited_by="memory: 9 bytes" if limit else MODEL.limited_by)
    return _made(body, [5] * num_prompt, model)


# lengths


def test_default_max_tokens_fill_the_context() -> None:
    request = _request(10)
    assert (request.max_tokens, request.max_length) == (90, 100)


@pytest.mark.parametrize(
    ("given", "default", "expected"), [(None, 20, 20), (None, 200, 100), (30, 20, 30), (None, 0, 90)]
)
def test_a_default_bounds_answers_without_a_limit_of_their_own(given: int | None, default: int, expected: int) -> None:
    body = ChatCompletionRequest.model_validate({"messages": HELLO, "max_tokens": given})
    limited = with_default_limit(body, default, 100)
    assert isinstance(limited, ChatCompletionRequest)
    assert _made(limited, [5] * 10, MODEL).max_tokens == expected


def test_the_engines_limit_holds_and_errors_say_what_sets_it() -> None:
    request = _request(10, 40)
    assert (request.max_length, request.max_tokens) == (40, 30)
    for limit, words in ((40, "40 (memory: 9 bytes)"), (0, "100 (the model's context)")):
        with pytest.raises(PromptTooLong, match=re.escape(words)):
            _request(100, limit)


def test_a_prompt_that_leaves_room_for_one_token_is_taken() -> None:
    assert _request(99).max_tokens == 1


@pytest.mark.parametrize("num_prompt", [100, 101])
def test_prompt_of_full_length_is_refused_with_the_limit(num_prompt: int) -> None:
    with pytest.raises(PromptTooLong) as caught:
        _request(num_prompt)
    assert (caught.value.param, caught.value.tokens, caught.value.limit) == ("messages", num_prompt, 100)


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        _request(0)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_max_tokens_bound_the_answer(field: str) -> None:
    assert _request(**{field: 1}).max_tokens == 1
    assert _request(**{field: 100}).max_tokens == 100


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_excessive_max_tokens_are_refused_with_the_limit(field: str) -> None:
    with pytest.raises(InvalidField, match=rf"^{field} .*\b40\b.*\b41\b") as caught:
        _request(limit=40, **{field: 41})
    assert caught.value.param == field


def test_both_names_at_once_are_refused_even_when_they_agree() -> None:
    with pytest.raises(InvalidField, match="cannot be combined"):
        _request(max_tokens=5, max_completion_tokens=5)


# other fields


def test_prompt_and_name_are_handed_on() -> None:
    request = _request(3)
    assert (request.prompt, request.request_id) == ([5, 5, 5], "r1")


@pytest.mark.parametrize(("given", "meant"), [(None, False), (False, False), (True, True)])
def test_end_token_ends_unless_ignored(given: bool | None, meant: bool) -> None:
    assert _request(ignore_eos=given).ignore_eos is meant


@pytest.mark.parametrize(("given", "meant"), [(None, True), (False, False), (True, True)])
def test_past_is_reused_unless_disabled(given: bool | None, meant: bool) -> None:
    assert _request(cache_prompt=given).cache_prompt is meant


@pytest.mark.parametrize("operators", [True, False])
def test_answer_is_exact_by_setting_or_by_request(operators: bool) -> None:
    body = {"messages": HELLO}
    exact = [
        _made(
            ChatCompletionRequest.model_validate(body | given),
            [5],
            MODEL,
            exact=operators,
        ).exact
        for given in ({}, {"exact": None}, {"exact": True}, {"exact": False})
    ]
    assert exact == [operators, operators, True, False]


@pytest.mark.parametrize("background", [False, True])
def test_only_the_server_makes_a_request_one_of_the_background(background: bool) -> None:
    body = ChatCompletionRequest.model_validate({"messages": HELLO})
    made = _made(body, [5], MODEL, background=background)
    assert made.background is background


def test_a_priority_is_handed_on_and_is_none_if_left_out() -> None:
    assert [_request(priority=given).priority for given in (None, -7, 3)] == [0, -7, 3]


def _sampling(**fields: Any) -> Sampling:
    return to_sampling(ChatRequest.model_validate({"messages": HELLO, **fields}), MODEL)


def test_unset_fields_have_the_models_values() -> None:
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
    given: dict[str, Any] = {
        "temperature": 0.1,
        "top_k": 2,
        "top_p": 0.3,
        "min_p": 0.4,
        "repetition_penalty": 0.5,
        "seed": 6,
    }
    given |= {"frequency_penalty": 0.7, "presence_penalty": -0.8, "logit_bias": {"999": -100, "0": 0.0}}
    assert _sampling(**given) == Sampling(0.1, 2, 0.3, 0.4, 0.5, 6, 0.7, -0.8, {999: -100.0})


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"^logit_bias .*\b1000\b.*\b1000$") as caught:
        _sampling(logit_bias={"1000": 1})
    assert caught.value.param == "logit_bias"


def test_negative_seeds_are_seeds_of_their_own() -> None:
    assert len({_sampling(seed=seed).seed for seed in (-1, 1, -(2**63), 2**63 - 1)}) == 4


def test_each_choice_has_a_random_stream_of_its_own() -> None:
    request = _request(seed=5)
    seeds = [nth_choice(request, index).sampling.seed for index in range(3)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert nth_choice(_request(), 1).sampling.seed is None


def test_min_tokens_must_not_exceed_max_tokens() -> None:
    assert _request(10, min_tokens=90).min_tokens == 90
    assert _request(10, min_tokens=3, max_tokens=3).min_tokens == 3
    for fields in ({"min_tokens": 91}, {"min_tokens": 4, "max_tokens": 3}):
        with pytest.raises(InvalidField) as caught:
            _request(10, **fields)
        assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("fields", "meant"), [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)]
)
def test_logprobs_are_computed_only_on_request(fields: dict[str, Any], meant: int | None) -> None:
    assert _request(**fields).top_logprobs == meant


def _completion(**fields: Any) -> GenerationRequest:
    body = CompletionRequest.model_validate({"prompt": "x", **fields})
    return _made(body, [5] * 10, MODEL)


def test_completion_has_sixteen_tokens_by_default() -> None:
    assert [_completion(max_tokens=given).max_tokens for given in (None, 7)] == [16, 7]


def test_prompt_is_scored_only_for_echo_with_logprobs() -> None:
    assert _completion(echo=True, logprobs=0, max_tokens=0).prompt_logprobs
    assert not _completion(echo=True).prompt_logprobs
    assert not _completion(logprobs=0).prompt_logprobs


def test_a_prompt_without_an_answer_may_fill_the_context() -> None:
    body = CompletionRequest.model_validate({"prompt": "x", "echo": True, "max_tokens": 0})
    full = _made(body, [5] * 100, MODEL)
    assert (full.max_tokens, full.max_length) == (0, 100)
    with pytest.raises(PromptTooLong):
        _made(body, [5] * 101, MODEL)


def test_prompt_scoring_needs_echo_logprobs_and_a_capable_model() -> None:
    last_only = msgspec.structs.replace(MODEL, scores_prompts=False)

    def scored(model: ModelInfo, **fields: Any) -> bool:
        body = CompletionRequest.model_validate({"prompt": "x", **fields})
        return _made(body, [5], model).prompt_logprobs

    assert scored(MODEL, echo=True, logprobs=0)
    for model in (MODEL, last_only):
        assert not scored(model, echo=True)
        assert not scored(model, logprobs=5)
    with pytest.raises(InvalidField, match="prune_lm_head") as caught:
        scored(last_only, echo=True, logprobs=0)
    assert caught.value.param == "logprobs"
