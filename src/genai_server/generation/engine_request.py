"""Converts bodies to engine requests: resolves defaults and checks limits. No I/O."""

from collections.abc import Collection
from typing import TypeVar

from msgspec import structs

from genai_server.apis.shared.chat_messages import ChatParameters
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.apis.shared.sampling_parameters import GenerationFields, SamplingFields
from genai_server.errors import InvalidField, PromptTooLong
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling

# Fields that have the same names and values in a body.
_SAMPLING_FIELDS = set(Sampling.__struct_fields__) - {"seed", "logit_bias"}

Tokens = TypeVar("Tokens", bound=Collection[int])


def to_generation_request(
    body: GenerationFields,
    prompt: list[int],
    model: ModelInfo,
    *,
    request_id: str,
    exact: bool = False,
    background: bool = False,
) -> GenerationRequest:
    """The engine request for one prompt, with all defaults resolved. See GenerationRequest for the arguments.

    `exact` is the default of the body's field.

    Raises InvalidField and PromptTooLong, which name the field, the limit and the given value.
    """
    source = "prompt" if isinstance(body, CompletionRequest) else "messages"
    encoded = "the prompt encodes to" if source == "prompt" else "the messages encode to"
    limit, limited_by = model.max_length, model.limited_by
    field, max_tokens = _answer_limit(body)
    if max_tokens is not None and max_tokens > limit:
        raise InvalidField(f"{field} must be at most {limit} ({limited_by}), given {max_tokens}", param=field)
    if not prompt:
        raise InvalidField(f"{encoded} zero tokens", param=source)
    if len(prompt) >= limit + (max_tokens == 0):
        raise PromptTooLong(
            f"{encoded} {len(prompt)} tokens; the limit for prompt and answer together is {limit} ({limited_by})",
            param=source,
            tokens=len(prompt),
            limit=limit,
            limited_by=limited_by,
        )
    available = limit - len(prompt)
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        max_tokens=available if max_tokens is None else max_tokens,
        max_length=limit,
        sampling=to_sampling(body, model),
        ignore_eos=bool(body.ignore_eos),
        cache_prompt=body.cache_prompt is not False,
        priority=body.priority or 0,
        background=background,
        exact=exact if body.exact is None else body.exact,
        min_tokens=_min_tokens(body, available if max_tokens is None else min(available, max_tokens)),
        top_logprobs=_top_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body, model),
        stop_token_ids=_known(body.stop_token_ids or [], model, "stop_token_ids"),
    )


def _answer_limit(body: GenerationFields) -> tuple[str, int | None]:
    """The name and value of the field that limits the answer's tokens."""
    if isinstance(body, ChatParameters) and body.max_completion_tokens is not None:
        if body.max_tokens is not None:
            raise InvalidField("max_tokens and max_completion_tokens cannot be combined", param="max_tokens")
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.default_max_tokens if body.max_tokens is None else body.max_tokens


def _min_tokens(body: SamplingFields, available: int) -> int:
    min_tokens = body.min_tokens or 0
    if min_tokens > available:
        raise InvalidField(
            f"min_tokens must be at most {available}, the limit of the answer, given {min_tokens}", param="min_tokens"
        )
    return min_tokens


def _top_logprobs(body: GenerationFields) -> int | None:
    if isinstance(body, CompletionRequest):
        return body.logprobs
    if isinstance(body, ChatParameters) and body.logprobs:
        return body.top_logprobs or 0
    return None


def _prompt_logprobs(body: GenerationFields, model: ModelInfo) -> bool:
    is_requested = isinstance(body, CompletionRequest) and bool(body.echo) and body.logprobs is not None
    if is_requested and not model.scores_prompts:
        raise InvalidField(
            "logprobs cannot be combined with echo: this model does not compute them for prompts (it was built with "
            "prune_lm_head, for example)",
            param="logprobs",
        )
    return is_requested


def to_sampling(body: SamplingFields, model: ModelInfo) -> Sampling:
    """The request's sampling values, with the model's defaults for absent fields. Raises InvalidField."""
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    bias = {int(token): value for token, value in (body.logit_bias or {}).items() if value}
    _known(bias, model, "logit_bias")
    # The engine's seeds are non-negative; OpenAI's may be negative.
    seed = None if body.seed is None else body.seed % 2**64
    return structs.replace(model.defaults, **given, seed=seed, logit_bias=bias)


def _known(tokens: Tokens, model: ModelInfo, param: str) -> Tokens:
    """The token ids. Raises InvalidField if one of them is not in the model's vocabulary."""
    if unknown := [token for token in tokens if token >= model.vocab_size]:
        raise InvalidField(
            f"{param} must have token ids below {model.vocab_size}, the model's vocabulary size, given {unknown[0]}",
            param=param,
        )
    return tokens


def nth_choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """The request for one of several answers to a prompt, with a seed of its own."""
    seed = request.sampling.seed
    if index == 0 or seed is None:
        return request
    return structs.replace(request, sampling=structs.replace(request.sampling, seed=(seed + index) % 2**64))
