"""The bodies on the wire, checked by pydantic: a field that is not listed here is refused, never ignored."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class Wire(BaseModel):
    """Base of all bodies: unknown fields and values of another JSON type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# Without a constraint pydantic lets lone surrogates pass, which are in no text that can be encoded.
Text = Annotated[str, Field(min_length=0)]


class ChatMessage(Wire):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text


class ChatParameters(Wire):
    """What all chat endpoints take. A sampling field that is left out has the value of the model directory's
    `genai_config.json`.
    """

    model: str | None = Field(None, description="The served model's id; the first model if left out.")
    messages: list[ChatMessage] = Field(min_length=1)
    device: str | None = Field(None, description="The configured device to run on; the least busy one if left out.")
    temperature: float | None = Field(None, ge=0.0, le=2.0, description="0 takes the most likely token each time.")
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0, le=1_000_000, description="0 considers all tokens.")
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10.0)
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    max_tokens: int | None = Field(None, ge=1, description="Most tokens of the answer; all that fit if left out.")
    ignore_eos: bool | None = Field(None, description="Go on after the token that ends an answer.")
    cache_prompt: bool | None = Field(None, description="Use a past that begins alike again; true if left out.")
    priority: int | None = Field(None, ge=-1000, le=1000, description="Lower is served earlier; 0 if left out.")
    exact: bool | None = Field(None, description="Bit for bit the same answer in any company.")


class ChatRequest(ChatParameters):
    """Body of /v1/chat and /v1/chat/stream."""


class StreamOptions(Wire):
    """OpenAI's options of a stream."""

    include_usage: bool | None = None


class ChatCompletionRequest(ChatParameters):
    """Body of /v1/chat/completions, the part of OpenAI's that this server honours."""

    max_completion_tokens: int | None = Field(None, ge=1, description="OpenAI's newer name of max_tokens.")
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")

    @field_validator("stream_options")
    @classmethod
    def _only_with_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("is only allowed with stream: true")
        return value


class Metrics(BaseModel):
    """How long an answer took; times in seconds, rates in tokens per second, null where unknown."""

    ttft: float | None
    total_latency: float
    tokens_per_second: float | None
    output_tokens_per_second: float | None
    input_tokens: int
    output_tokens: int
    tpot: float | None
    model: str


class ChatResponse(BaseModel):
    """Answer of /v1/chat."""

    id: str
    content: Text
    finish_reason: str
    metrics: Metrics


class ErrorDetail(BaseModel):
    """OpenAI's form of an error."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(BaseModel):
    """Every error's body."""

    error: ErrorDetail


_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _profile_prefix(value: str) -> str:
    if not _PREFIX.fullmatch(value):
        raise ValueError(
            'must be "0", "1" or a prefix for the files, which is a name and no path: '
            "1 to 64 letters, digits, dots, dashes and underscores, first a letter or digit"
        )
    return value


ProfilePrefix = Annotated[str, AfterValidator(_profile_prefix)]


class RuntimeOptionsRequest(Wire):
    """Body of POST /v1/admin/runtime_options: at least one of the two options."""

    terminate_session: Literal["0", "1"] | None = Field(None, description='"1" ends, "0" recovers.')
    enable_profiling: ProfilePrefix | None = Field(
        None,
        description='"1", "0", or a prefix for the names of the files.',
    )
    device: str | None = None
    request_id: str | None = Field(None, min_length=1)


JsonObject = dict[str, Any]
