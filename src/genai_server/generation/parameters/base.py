"""Base models and field types of all request bodies. Unknown fields are refused, never ignored."""

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
    """The error that a model validator raises for one field. `rule` follows the field's name in the message."""
    return PydanticCustomError("field", "{rule}", {"field": field, "rule": rule})


def missing_error(field: str, rule: str) -> PydanticCustomError:
    """The error for a missing field. `rule` states when the field is required."""
    return PydanticCustomError("missing_field", "{rule}", {"field": field, "rule": f"is required {rule}"})


def _tag(value: Any) -> str:
    """The discriminator tag for a member of a union, from the member's field `type`."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    # The prefix "type=" keeps a tag from being mistaken for a field name in an error's location.
    return f"type={kind}"


class ByType:
    """Annotates a union of models, each of which has a `type` of its own.

    `kind` names such an object in the error for other types; `note` is appended to the error.
    """

    def __init__(self, kind: str, note: str = "") -> None:
        self._kind = kind
        self._note = note

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        types = {get_args(member.model_fields["type"].annotation)[0]: member for member in get_args(source)}
        *others, last = types
        message = f"must be a {self._kind} of type {', '.join(others)} or {last}{self._note}"
        by_type = Discriminator(_tag, custom_error_type=self._kind, custom_error_message=message)
        members = [Annotated[member, Tag(f"type={kind}")] for kind, member in types.items()]
        return handler.generate_schema(Annotated[Union[tuple(members)], by_type])  # noqa: UP007 - of a tuple


def check_with_type(given: str, wanted: str, **fields: Any) -> None:
    """Raise an error unless the fields are given with the wanted type of their object, and only with that type."""
    for field, value in fields.items():
        if given == wanted and value is None:
            raise missing_error(field, f"with type {wanted}")
        if given != wanted and value is not None:
            raise field_error(field, f"is only allowed with type {wanted}")


def elements(max_length: int, *, min_length: int | None = None) -> Any:
    """Length limits of a list. Validation stops at the first wrong element because there may be many thousands."""
    return Field(min_length=min_length, max_length=max_length, fail_fast=True)


def members(max_length: int) -> BeforeValidator:
    """Limit of the number of members of an object whose keys the client chooses.

    pydantic's own limit counts only valid members.
    """

    def counted(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > max_length:
            raise PydanticKnownError(
                "too_long", {"field_type": "Dictionary", "max_length": max_length, "actual_length": len(given)}
            )
        return given

    return BeforeValidator(counted)


# What clients note about an object.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    members(16),
]


def writable(value: Any) -> Any:
    """Refuse values that Python's parser accepts beyond JSON: NaN and lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise ValueError("must be valid JSON and valid Unicode") from None
    return value


# An object that is written as JSON again.
WritableObject = Annotated[JsonObject, AfterValidator(writable)]


class Wire(BaseModel):
    """Base of all bodies: unknown fields and values of another JSON type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, given: Any) -> Any:
        """Keep only one unknown field of a body with many: pydantic would report each one, which takes long."""
        if not isinstance(given, dict) or len(given) <= len(cls.model_fields):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in given if name not in known)
        return {name: value for name, value in given.items() if name in known or name == unknown}


class WithoutEffect(Wire):
    """OpenAI's fields that have no effect on this server. Any value is accepted."""

    metadata: Any = Field(None, description="Accepted, but has no effect.")
    moderation: Any = Field(None, description="Accepted, but has no effect.")
    prompt_cache_key: Any = Field(None, description="No effect: cached prefixes are reused automatically.")
    prompt_cache_options: Any = Field(None, description="Accepted, but has no effect.")
    prompt_cache_retention: Any = Field(None, description="Accepted, but has no effect.")
    safety_identifier: Any = Field(None, description="Accepted, but has no effect.")
    service_tier: Any = Field(None, description="Accepted, but has no effect.")
    user: Any = Field(None, description="Accepted, but has no effect.")


class RouterFields(Wire):
    """vLLM's and SGLang's fields that routers add to every body. Only values that match this server are accepted."""

    no_stop_trim: Literal[False] | None = Field(
        None, description="Only SGLang's default is accepted; see include_stop_str_in_output."
    )
    skip_special_tokens: Literal[True] | None = Field(None, description="Only vLLM's default is accepted.")
    return_hidden_states: Literal[False] | None = Field(None, description="Only SGLang's default is accepted.")


class ChatRouterFields(RouterFields):
    """The router fields of chat requests."""

    add_generation_prompt: Literal[True] | None = Field(None, description="Only vLLM's default is accepted.")
    best_of: Literal[1] | None = Field(None, description="Only 1 is accepted: answers are not ranked.")
    continue_final_message: Literal[False] | None = Field(None, description="Only vLLM's default is accepted.")
    include_reasoning: Literal[True] | None = Field(None, description="Only vLLM's default is accepted.")
    separate_reasoning: Literal[True] | None = Field(None, description="Only SGLang's default is accepted.")
    stream_reasoning: Literal[True] | None = Field(None, description="Only SGLang's default is accepted.")


class ErrorDetail(BaseModel):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(BaseModel):
    """The body of all error responses."""

    error: ErrorDetail


@dataclass(frozen=True)
class Metrics(Timings):
    """Latency and throughput of a request, measured from its first byte. Times are in seconds, rates in tokens per
    second; unknown values are null. `profiled_tokens` is present if some tokens were profiled, which slows them down.
    """

    model: str
    profiled_tokens: int = 0
