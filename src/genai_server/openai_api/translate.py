"""Between the wire and the vocabulary, without any I/O: requests downwards, chunks and answers upwards."""

from dataclasses import dataclass

from msgspec import structs

from genai_server.errors import InvalidField, PromptTooLong
from genai_server.generation import FinishReason, GenerationRequest, ModelInfo, Sampling
from genai_server.openai_api.schemas import ChatCompletionRequest, ChatParameters, JsonObject

_SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
# OpenAI's enumeration has no word for it; the answer is cut, as with "length".
_OPENAI_REASONS = {FinishReason.TERMINATED: "length"}


@dataclass(frozen=True)
class Policy:
    """The operator's: most tokens of prompt and answer together, and whether answers are exact by default."""

    max_length: int
    exact: bool = False


def to_generation_request(
    body: ChatParameters, prompt: list[int], model: ModelInfo, *, request_id: str, policy: Policy
) -> GenerationRequest:
    """Resolve all defaults.

    Raises InvalidField and PromptTooLong, which name field, limit and given value.
    """
    limit = min(policy.max_length, model.context_length)
    field, max_tokens = _answer_limit(body)
    source = "GENAI_MAX_LENGTH" if limit == policy.max_length else "the model's context"
    if max_tokens is not None and max_tokens > limit:
        raise InvalidField(f"{field} must be at most {limit} ({source}), given {max_tokens}", param=field)
    if not prompt:
        raise InvalidField("the messages make no tokens with this model's chat template", param="messages")
    if len(prompt) >= limit:
        raise PromptTooLong(
            f"the messages make {len(prompt)} tokens, but prompt and answer together may have {limit} ({source})",
            param="messages",
        )
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        max_tokens=limit - len(prompt) if max_tokens is None else max_tokens,
        max_length=limit,
        sampling=to_sampling(body, model.defaults),
        ignore_eos=bool(body.ignore_eos),
        cache_prompt=body.cache_prompt is not False,
        priority=body.priority or 0,
        exact=policy.exact if body.exact is None else body.exact,
    )


def _answer_limit(body: ChatParameters) -> tuple[str, int | None]:
    """The most tokens of the answer, and under which of its two names it was given."""
    if isinstance(body, ChatCompletionRequest) and body.max_completion_tokens is not None:
        if body.max_tokens is not None:
            raise InvalidField("give either max_tokens or max_completion_tokens, not both", param="max_tokens")
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens


def to_sampling(body: ChatParameters, defaults: Sampling) -> Sampling:
    """The model's own sampling values, with those that the request gives in their place."""
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    return structs.replace(defaults, **given)


def openai_reason(reason: FinishReason) -> JsonObject:
    """`finish_reason` of a choice, and the true one beside it where OpenAI has no word for it."""
    if reason in _OPENAI_REASONS:
        return {"finish_reason": _OPENAI_REASONS[reason], "genai_finish_reason": reason.value}
    return {"finish_reason": reason.value}


def usage(num_prompt: int, num_completion: int, num_cached: int = 0) -> JsonObject:
    """OpenAI's usage object, in tokens."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


class ChatCompletionBuilder:
    """Builds OpenAI's chat completion objects of one answer; `created` is in seconds since 1970."""

    def __init__(self, id: str, model: str, created: int, *, with_usage: bool = False) -> None:
        self._common = {"id": id, "created": created, "model": model}
        self._with_usage = with_usage

    def complete(self, text: str, reason: FinishReason, usage: JsonObject) -> JsonObject:
        """The whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, **openai_reason(reason)}
        return {**self._common, "object": "chat.completion", "choices": [choice], "usage": usage}

    def first(self) -> JsonObject:
        """The chunk that only says who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, text: str) -> JsonObject:
        """A piece of the answer."""
        return self._chunk({"content": text})

    def last(self, reason: FinishReason) -> JsonObject:
        """The chunk that says why the answer ends."""
        return self._chunk({}, openai_reason(reason))

    def usage(self, usage: JsonObject) -> JsonObject:
        """The chunk after the last, for those who asked for it."""
        return {**self._common, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def _chunk(self, delta: JsonObject, reason: JsonObject | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "logprobs": None, **(reason or {"finish_reason": None})}
        chunk: JsonObject = {**self._common, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._with_usage else chunk
