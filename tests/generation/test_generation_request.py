"""Engine requests from bodies: defaults and limits."""

import re
from typing import Any

import msgspec
import pytest

from genai_server.apis.chat_completions import ChatCompletionRequest
from genai_server.apis.own_chat import ChatRequest
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


@pytest.mark.parametrize(
    ("num_prompt", "limit", "max_tokens", "max_length"), [(10, 0, 90, 100), (99, 0, 1, 100), (10, 40, 30, 40)]
)
def test_default_max_tokens_fill_the_context_or_the_engines_limit(
    num_prompt: int, limit: int, max_tokens: int, max_length: int
) -> None:
    request = _request(num_prompt, limit)
    assert (request.max_tokens, request.max_length) == (max_tokens, max_length)


@pytest.mark.parametrize(
    ("num_prompt", "limit", "words"),
    [(100, 40, "40 (memory: 9 bytes)"), (100, 0, "100 (the model's context)"), (101, 0, "100 (the model's context)")],
)
def test_prompt_of_full_length_is_refused_with_the_limit(num_prompt: int, limit: int, words: str) -> None:
    with pytest.raises(PromptTooLong, match=re.escape(words)) as caught:
        _request(num_prompt, limit)
    assert (caught.value.param, caught.value.tokens, caught.value.limit) == ("messages", num_prompt, limit or 100)


@pytest.mark.parametrize(
    ("given", "default", "expected"), [(None, 20, 20), (None, 200, 100), (30, 20, 30), (None, 0, 90)]
)
def test_a_default_bounds_answers_without_a_limit_of_their_own(given: int | None, default: int, expected: int) -> None:
    body = ChatCompletionRequest.model_validate({"messages": HELLO, "max_tokens": given})
    limited = with_default_limit(body, default, 100)
    assert isinstance(limited, ChatCompletionRequest)
    assert _made(limited, [5] * 10, MODEL).max_tokens == expected


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        _request(0)
    assert caught.value.param == "messages"


# other fields


@pytest.mark.parametrize("operators", [True, False])
def test_answer_is_exact_by_setting_or_by_request(operators: bool) -> None:
    bodies = [
        ChatCompletionRequest.model_validate({"messages": HELLO} | given)
        for given in ({}, {"exact": None}, {"exact": True}, {"exact": False})
    ]
    exact = [_made(body, [5], MODEL, exact=operators).exact for body in bodies]
    assert exact == [operators, operators, True, False]


@pytest.mark.parametrize("low_priority", [False, True])
def test_only_the_server_makes_a_request_one_of_the_background(low_priority: bool) -> None:
    body = ChatCompletionRequest.model_validate({"messages": HELLO})
    assert _made(body, [5], MODEL, low_priority=low_priority).low_priority is low_priority


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


def test_each_choice_has_a_random_stream_of_its_own() -> None:
    request = _request(seed=5)
    seeds = [nth_choice(request, index).sampling.seed for index in range(3)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert nth_choice(_request(), 1).sampling.seed is None


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
