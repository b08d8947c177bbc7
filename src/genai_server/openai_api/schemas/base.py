"""What the bodies of all endpoints are made of: a field that is not listed is refused, never ignored."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

JsonObject = dict[str, Any]
# Without a constraint pydantic lets lone surrogates pass, which are in no text that can be encoded.
Text = Annotated[str, Field(min_length=0)]
NonEmptyText = Annotated[str, Field(min_length=1)]


def field_error(field: str, rule: str) -> PydanticCustomError:
    """The error that a validator of a whole body raises for one field. `rule` continues the field's name."""
    return PydanticCustomError("field", "{rule}", {"field": field, "rule": rule})


def missing_error(field: str, rule: str) -> PydanticCustomError:
    """The error for a missing field. `rule` says in what case it is required."""
    return PydanticCustomError("missing_field", "{rule}", {"field": field, "rule": f"is required {rule}"})


def elements(most: int, *, least: int | None = None) -> Any:
    """The limits of a list in a body. The first wrong element ends the check: a body can have hundreds of thousands."""
    return Field(min_length=least, max_length=most, fail_fast=True)


def members(most: int) -> BeforeValidator:
    """The limit for an object with keys of the client's. pydantic's own limit counts only checked members."""

    def counted(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > most:
            raise PydanticKnownError(
                "too_long", {"field_type": "Dictionary", "max_length": most, "actual_length": len(given)}
            )
        return given

    return BeforeValidator(counted)


def _writable(value: JsonObject) -> JsonObject:
    """Python reads more than JSON has: NaN, and halves of characters."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise ValueError("must be valid JSON and valid Unicode") from None
    return value


# An object that becomes a text again.
WritableObject = Annotated[JsonObject, AfterValidator(_writable)]


class Wire(BaseModel):
    """Base of all bodies: unknown fields and values of another JSON type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, given: Any) -> Any:
        """Of more fields than there are, keep one that is unknown: pydantic would tell of each, and take its time."""
        if not isinstance(given, dict) or len(given) <= len(cls.model_fields):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in given if name not in known)
        return {name: value for name, value in given.items() if name in known or name == unknown}


class WithoutEffect(Wire):
    """Fields of OpenAI's that cannot change an answer of this server: accepted with any value, and nothing more."""

    metadata: Any = Field(None, description="Has no effect here.")
    moderation: Any = Field(None, description="Has no effect here.")
    prompt_cache_key: Any = Field(None, description="Has no effect here: whatever begins alike is used again.")
    prompt_cache_options: Any = Field(None, description="Has no effect here.")
    prompt_cache_retention: Any = Field(None, description="Has no effect here.")
    safety_identifier: Any = Field(None, description="Has no effect here.")
    service_tier: Any = Field(None, description="Has no effect here.")
    user: Any = Field(None, description="Has no effect here.")


class RouterFields(Wire):
    """Fields of vLLM and SGLang, which routers add to every body: only the values that say what this server does."""

    no_stop_trim: Literal[False] | None = Field(None, description="Nothing but vLLM's default.")
    skip_special_tokens: Literal[True] | None = Field(None, description="Nothing but vLLM's default.")
    return_hidden_states: Literal[False] | None = Field(None, description="Nothing but SGLang's default.")


class ChatRouterFields(RouterFields):
    """Those of chats."""

    continue_final_message: Literal[False] | None = Field(None, description="Nothing but vLLM's default.")
    include_reasoning: Literal[True] | None = Field(None, description="Nothing but vLLM's default.")
    separate_reasoning: Literal[True] | None = Field(None, description="Nothing but SGLang's default.")
    stream_reasoning: Literal[True] | None = Field(None, description="Nothing but SGLang's default.")


class ErrorDetail(BaseModel):
    """OpenAI's form of an error."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(BaseModel):
    """Every error's body."""

    error: ErrorDetail


class Breakdown(BaseModel):
    """Where the time of an answer went, in seconds. The parts add up to its `total_latency`."""

    receive: float
    load: float
    prepare: float
    queue: float
    prefill: float
    decode: float
    deliver: float


class Metrics(BaseModel):
    """How long an answer took, from the first byte of its request; times in seconds, rates in tokens per second, null
    where unknown. `profiled_tokens` is present if some of the tokens were profiled, which makes them slower.
    """

    ttft: float | None
    total_latency: float
    tokens_per_second: float | None
    output_tokens_per_second: float | None
    input_tokens: int
    output_tokens: int
    tpot: float | None
    breakdown: Breakdown | None
    model: str
    profiled_tokens: int = 0
