"""Base models and field types of all request bodies, as pydantic models, and the models of error responses and metrics.
Unknown fields are refused, never ignored (`StrictModel`).

Programs written for other servers send these servers' optional fields that they do not use as null, which asks for
nothing. Null is therefore accepted for such fields (`NullFields`), and any other value is refused.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError

from genai_server.http.json_response import JsonObject
from genai_server.timing import Timings

# Without a constraint pydantic accepts lone surrogates, which cannot be encoded as UTF-8.
Text = Annotated[str, Field(min_length=0)]
NonEmptyText = Annotated[str, Field(min_length=1)]


def field_error(field: str, rule: str) -> PydanticCustomError:
    """Return the error that a pydantic model validator raises for the field `field`. `rule` says what the field must be
    or that it cannot be combined with another; in the message it follows the field's name.
    """
    return PydanticCustomError("field", "{rule}", {"field": field, "rule": rule})


def missing_error(field: str, rule: str) -> PydanticCustomError:
    """Return the error that a pydantic model validator raises for the missing field `field`. `rule` states when the
    field is required, such as "with type image"; in the message it follows "is required".
    """
    return PydanticCustomError("missing_field", "{rule}", {"field": field, "rule": f"is required {rule}"})


def _tag(value: Any) -> str:
    """Return the tag by which pydantic selects the model for a member of a union: "type=" and the value of the member's
    field `type`.
    """
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    # The prefix "type=" keeps a tag from being mistaken for a field name in an error's location.
    return f"type={kind}"


class TaggedUnion:
    """An annotation for a union of pydantic models, as in `Annotated[A | B, TaggedUnion("part")]`. The value of an
    object's field `type` selects the model that validates the object.

    `kind` is the noun for such an object in the error for an unknown type, and `note` is appended to this error.
    """

    def __init__(self, kind: str, note: str = "") -> None:
        self._kind = kind
        self._note = note

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        types = {get_args(member.model_fields["type"].annotation)[0]: member for member in get_args(source)}
        *names, last = types
        message = f"must be a {self._kind} of type {', '.join(names)} or {last}{self._note}"
        by_type = Discriminator(_tag, custom_error_type=self._kind, custom_error_message=message)
        members = [Annotated[member, Tag(f"type={kind}")] for kind, member in types.items()]
        return handler.generate_schema(Annotated[Union[tuple(members)], by_type])  # noqa: UP007 - of a tuple


def check_with_type(actual: str, expected: str, **fields: Any) -> None:
    """Check fields, given as keyword arguments, that an object has exactly if its field `type` is `expected`. `actual`
    is the type that the object has.

    Raises a validation error if the types are equal and a field is None, or if they differ and a field is not None.
    """
    for field, value in fields.items():
        if actual == expected and value is None:
            raise missing_error(field, f"with type {expected}")
        if actual != expected and value is not None:
            raise field_error(field, f"is only allowed with type {expected}")


def elements(max_length: int, *, min_length: int | None = None) -> Any:
    """Return a pydantic field that limits the length of a list. Validation stops at the first wrong element, because
    there may be many thousands.
    """
    return Field(min_length=min_length, max_length=max_length, fail_fast=True)


def members(max_length: int) -> BeforeValidator:
    """Return a validator that refuses a JSON object with more than `max_length` members. For objects whose keys the
    client chooses.

    pydantic's own limit counts only valid members.
    """

    def counted(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > max_length:
            raise PydanticKnownError(
                "too_long", {"field_type": "Dictionary", "max_length": max_length, "actual_length": len(value)}
            )
        return value

    return BeforeValidator(counted)


# What clients note about an object.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    members(16),
]


def writable(value: Any) -> Any:
    """Return `value`, from a parsed body, unchanged if it can be written as JSON again. Raises ValueError for what
    Python's JSON parser accepts beyond that: NaN and lone surrogates. A pydantic validator.
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise ValueError("must be valid JSON and valid Unicode") from None
    return value


# An object that is written as JSON again.
WritableObject = Annotated[JsonObject, AfterValidator(writable)]


class StrictModel(BaseModel):
    """Base of the models of all request bodies and their parts. Unknown fields and values of another JSON type are
    errors: nothing is ignored or converted.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, body: Any) -> Any:
        """Return the body with at most one of its unknown fields, before it is validated. pydantic would report each
        unknown field, which takes long for many.
        """
        if not isinstance(body, dict) or len(body) <= len(cls.model_fields):
            return body
        field_names = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in body if name not in field_names)
        return {name: value for name, value in body.items() if name in field_names or name == unknown}


class WithoutEffect(StrictModel):
    """OpenAI's fields that have no effect on this server, such as `metadata`. Any value is accepted. Bodies of
    endpoints that have these fields extend it.
    """

    metadata: Any = Field(None, description="Accepted, but has no effect.")
    moderation: Any = Field(None, description="Accepted, but has no effect.")
    prompt_cache_key: Any = Field(None, description="No effect: cached prefixes are reused automatically.")
    prompt_cache_options: Any = Field(None, description="Accepted, but has no effect.")
    prompt_cache_retention: Any = Field(None, description="Accepted, but has no effect.")
    safety_identifier: Any = Field(None, description="Accepted, but has no effect.")
    service_tier: Any = Field(None, description="Accepted, but has no effect.")
    user: Any = Field(None, description="Accepted, but has no effect.")


class RouterFields(StrictModel):
    """Fields of vLLM and SGLang that routers, which distribute requests to several servers, add to every body. Only the
    values that match what this server does are accepted.
    """

    no_stop_trim: Literal[False] | None = Field(
        None, description="Only SGLang's default is accepted; see include_stop_str_in_output."
    )
    skip_special_tokens: Literal[True] | None = Field(None, description="Only vLLM's default is accepted.")
    return_hidden_states: Literal[False] | None = Field(None, description="Only SGLang's default is accepted.")


class ChatRouterFields(RouterFields):
    """Fields of vLLM and SGLang that routers, which distribute requests to several servers, add to the bodies of chat
    requests. Only the values that match what this server does are accepted.
    """

    add_generation_prompt: Literal[True] | None = Field(None, description="Only vLLM's default is accepted.")
    best_of: Literal[1] | None = Field(None, description="Only 1 is accepted: answers are not ranked.")
    continue_final_message: Literal[False] | None = Field(None, description="Only vLLM's default is accepted.")
    include_reasoning: Literal[True] | None = Field(None, description="Only vLLM's default is accepted.")
    separate_reasoning: Literal[True] | None = Field(None, description="Only SGLang's default is accepted.")
    stream_reasoning: Literal[True] | None = Field(None, description="Only SGLang's default is accepted.")


class ErrorDetail(BaseModel):
    """An error in OpenAI's format: the message for people, the class of the error as `type` and `code`, and the field
    that the error is about as `param`, which may be null.
    """

    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(BaseModel):
    """The body of error responses in OpenAI's format."""

    error: ErrorDetail


@dataclass(frozen=True)
class Metrics(Timings):
    """Latency and throughput of a request, measured from its first byte. Times are in seconds, rates in tokens per
    second; unknown values are null. `profiled_tokens` is present if ONNX Runtime profiled some tokens, which slows them
    down.
    """

    model: str
    profiled_tokens: int = 0


_VLLM_FIELDS = (
    "activation add_generation_prompt add_special_tokens additional_data allowed_token_ids bad_words best_of "
    "chat_template chat_template_kwargs continue_final_message documents ec_transfer_params echo embed_dtype "
    "encoding_format endianness guided_choice guided_decoding_backend guided_grammar guided_json guided_regex "
    "guided_whitespace_pattern include_reasoning kv_transfer_params length_penalty logits_processors "
    "logprob_token_ids media_io_kwargs mm_processor_kwargs normalize prompt_embeds prompt_logprobs "
    "repetition_detection request_id response_format return_prompt_text return_token_ids return_token_offsets "
    "return_token_strs return_tokens_as_token_ids routed_experts_prompt_start session_id skip_special_tokens softmax "
    "spaces_between_special_tokens stream_interval structural_tag thinking_token_budget truncate_prompt_tokens "
    "truncation_side use_activation use_beam_search vllm_xargs watermarking"
)
_SGLANG_FIELDS = (
    "bootstrap_host bootstrap_port bootstrap_room custom_labels custom_logit_processor custom_params "
    "data_parallel_rank disagg_prefill_dp_rank ebnf extra_key images_config input_ids json_schema lora_path "
    "max_dynamic_patch min_dynamic_patch ngram_corpus_id no_stop_trim priority regex return_cached_tokens_details "
    "return_hidden_states return_routed_experts rid routed_dp_rank routed_experts_start_len separate_reasoning "
    "session_params stop_regex stream_reasoning"
)
_LLAMA_CPP_FIELDS = (
    "chat_format dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers "
    "dynatemp_exponent dynatemp_range grammar grammar_lazy grammar_triggers id_slot image_data lora min_keep mirostat "
    "mirostat_eta mirostat_tau n_discard n_indent n_keep n_predict n_probs parse_tool_calls penalize_nl "
    "post_sampling_probs preserved_tokens reasoning_budget reasoning_format repeat_penalty response_fields "
    "return_tokens samplers t_max_predict_ms t_max_prompt_ms tfs_z thinking_forced_open timings_per_token top_n_sigma "
    "typical_p xtc_probability xtc_threshold"
)
# Of vLLM's, SGLang's and llama.cpp's requests.
OTHER_FIELDS = frozenset(f"{_VLLM_FIELDS} {_SGLANG_FIELDS} {_LLAMA_CPP_FIELDS}".split())


class NullFields(StrictModel):
    """Base of bodies that may have null in the optional fields of vLLM, SGLang and llama.cpp (OTHER_FIELDS). Null is
    treated as if the field were absent, even if this server does not have the field.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict) or not any(value is None for value in body.values()):
            return body
        return {name: value for name, value in body.items() if value is not None or name not in OTHER_FIELDS}


class ResultFields(NullFields):
    """Fields of all bodies that ask for a result other than text, such as embeddings: the model, the device, the
    priority, and the time limit in seconds.
    """

    model: str | None = Field(None, description="Id of a served model; by default the first suitable one.")
    device: str | None = Field(None, description="Configured device to run on; by default the least busy one.")
    priority: int | None = Field(
        None, ge=-1000, le=1000, description="Of a key's requests, those with lower values come first; 0 by default."
    )
    timeout: float | None = Field(None, gt=0, description="Seconds, including waiting, after which the request fails.")
