"""Request and response bodies of the admin endpoints, as pydantic models: runtime options, profile sessions, running
and ended requests, usage by API key, and loading and unloading of models, aliases and LoRA adapters.
"""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from genai_server.config.settings import ADAPTER_NAME, MODEL_NAME, device_list
from genai_server.generation.parameters.base import StrictModel, elements, field_error
from genai_server.messages.admin import PREFIX, ProfilePlan, SlowTokens

_PREFIX_FORM = "1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit"


def _profile_prefix(value: str) -> str:
    if not PREFIX.fullmatch(value):
        raise ValueError(f'must be "0", "1" or a file name prefix, not a path: {_PREFIX_FORM}')
    return value


def _session_prefix(value: str) -> str:
    if not PREFIX.fullmatch(value) or value in ("0", "1"):
        raise ValueError(f"must be a name, not a path, and not 0 or 1: {_PREFIX_FORM}")
    return value


ProfilePrefix = Annotated[str, AfterValidator(_profile_prefix)]
SessionPrefix = Annotated[str, AfterValidator(_session_prefix)]
# No answer has more tokens.
_MAX_TOKENS = 1_000_000
TokenIndex = Annotated[int, Field(ge=0, le=_MAX_TOKENS)]
ModelName = Annotated[str, Field(pattern=f"^{MODEL_NAME}$")]
# The name of a served model, in any form that requests may use.
ServedName = Annotated[str, Field(min_length=1, max_length=256)]
AdapterName = Annotated[str, Field(pattern=f"^{ADAPTER_NAME}$")]


class RuntimeOptionsRequest(StrictModel):
    """Body of POST /v1/admin/runtime_options, which changes onnxruntime-genai's runtime options on running devices.

    At least one of the options `terminate_session` ("1" ends all running requests, "0" lets the engine run again) and
    `enable_profiling` ("1" or a prefix for file names starts profiling, "0" stops it) must be given. `model`, `device`
    and `request_id` restrict the change; without them, it applies to all devices.
    """

    terminate_session: Literal["0", "1"] | None = Field(
        None, description='"1" terminates running requests, "0" lets the engine run again.'
    )
    enable_profiling: ProfilePrefix | None = Field(
        None, description='"1" or a prefix for file names starts profiling, "0" stops it.'
    )
    model: str | None = Field(None, description="Model to change; by default all.")
    device: str | None = None
    request_id: str | None = Field(
        None, min_length=1, description="Restrict the change to the request with this unique_id or id."
    )


class ProfileRequest(StrictModel):
    """Body of POST /v1/admin/profiles, which starts a profile session: which model, device, request and tokens to
    profile, whether to start only after a slow token, and after how many tokens or seconds to stop.
    """

    model: str | None = Field(
        None, description="Model to profile. Required if several are served, unless request_id is given."
    )
    device: str | None = Field(
        None, description="Device to profile. Required if there are several, unless request_id is given."
    )
    request_id: str | None = Field(None, min_length=1, description="Profile only this running or waiting request.")
    prefix: SessionPrefix = Field("session", description="Prefix of the session's id and of its file names.")
    phase: Literal["prefill", "decode"] | None = Field(
        None, description="Profile only prompts, or only generated tokens."
    )
    first_tokens: int | None = Field(
        None, ge=1, le=_MAX_TOKENS, description="Profile prompts and the first N tokens of each answer."
    )
    tokens: Annotated[list[TokenIndex], elements(2, min_length=2)] | None = Field(
        None, description="First and last token of each answer to profile. The pass over the prompt yields token 0."
    )
    max_tokens: int = Field(
        256, ge=1, le=_MAX_TOKENS, description="Maximum number of profiled tokens; the session ends there."
    )
    max_seconds: float = Field(3600.0, gt=0, le=7 * 86400, description="Maximum duration of the session in seconds.")
    slow_token_ms: float | None = Field(
        None, gt=0, le=1e6, description="Start profiling after a token that takes longer than this."
    )
    slow_token_ratio: float | None = Field(
        None, gt=1, le=1e6, description="Start after a token that takes longer than this multiple of the median."
    )
    next_tokens: int | None = Field(
        None, ge=1, le=_MAX_TOKENS, description="Number of tokens to profile after a slow one."
    )
    max_per_hour: int | None = Field(
        None, ge=1, le=3600, description="Maximum number of slow tokens per hour that start profiling."
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        windows = [name for name in ("phase", "first_tokens", "tokens") if getattr(self, name) is not None]
        if len(windows) > 1:
            raise field_error(windows[1], f"cannot be combined with {windows[0]}")
        if self.tokens is not None and self.tokens[1] < self.tokens[0]:
            raise field_error("tokens", f"must have the lower number first; given {self.tokens}")
        triggers = [name for name in ("slow_token_ms", "slow_token_ratio") if getattr(self, name) is not None]
        if len(triggers) > 1:
            raise field_error(triggers[1], f"cannot be combined with {triggers[0]}")
        if triggers and self.phase == "prefill":
            raise field_error(triggers[0], "applies to generated tokens; given phase 'prefill'")
        for name in ("next_tokens", "max_per_hour"):
            if getattr(self, name) is not None and not triggers:
                raise field_error(name, "is only allowed with slow_token_ms or slow_token_ratio")
        return self

    def plan(self) -> ProfilePlan:
        """Convert this body to the message that tells the engine what to profile and when to stop."""
        first, last = self._window()
        slow = None
        if self.slow_token_ms is not None or self.slow_token_ratio is not None:
            fields = {"num_tokens": self.next_tokens, "max_per_hour": self.max_per_hour}
            limits = {name: value for name, value in fields.items() if value is not None}
            slow = SlowTokens(self.slow_token_ms, self.slow_token_ratio, **limits)
        return ProfilePlan(self.prefix, self.request_id, first, last, self.max_tokens, self.max_seconds, slow)

    def _window(self) -> tuple[int, int | None]:
        if self.tokens is not None:
            return self.tokens[0], self.tokens[1]
        if self.first_tokens is not None:
            return 0, self.first_tokens - 1
        return (1, None) if self.phase == "decode" else (0, 0 if self.phase == "prefill" else None)


class EmptyBody(StrictModel):
    """Body of a POST request that takes no fields. A body with any field is refused."""


class RequestEntry(BaseModel):
    """A running or waiting request in the response of GET /v1/requests. A request for several answers has one entry for
    each answer.

    `age` is the number of seconds since the engine received the request. In the phase `tools`, the server lists or runs
    tools for the request and no engine has it; `age` is then counted for the whole request, the token counts include
    all rounds of generation so far, and `device` is the device of the last round, or empty before the first round.

    `id` is the request's `X-Request-ID`, which clients may reuse; `unique_id` is unique. `key_name` is the name of the
    request's API key, `(admin)` for the admin key, and null without a key.
    """

    id: str
    unique_id: str
    object: Literal["request"]
    key_name: str | None
    model: str
    device: str
    phase: Literal["queued", "prefill", "decode", "tools"]
    age: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    background: bool


class RequestsResponse(BaseModel):
    """Response of GET /v1/requests: the running and waiting requests. The entries of each device are in order of
    arrival.
    """

    object: Literal["list"]
    data: list[RequestEntry]


class EndedRequestEntry(BaseModel):
    """A request that has ended or was refused, in the response of GET /v1/requests/ended.

    `status` is the HTTP status of the response, `error` the code of the error or null, and `finish_reason` has the
    finish reasons of all answers. If `error` is `model_not_found`, `model` is the name that the request asked for.
    `ended` is in seconds since 1970. `seconds`, the duration of the request, and `ttft`, the time to the first token,
    are in seconds from the arrival of the request's first byte.
    """

    id: str
    unique_id: str
    object: Literal["request"]
    key_name: str | None
    path: str
    model: str
    device: str
    status: int
    error: str | None
    finish_reason: str
    ended: float
    seconds: float
    ttft: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class EndedRequestsResponse(BaseModel):
    """Response of GET /v1/requests/ended: the last requests that have ended or were refused, newest first."""

    object: Literal["list"]
    data: list[EndedRequestEntry]


def _day(value: object) -> date:
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise ValueError("must be a day, such as 2026-11-28") from None


_Day = Annotated[date, BeforeValidator(_day)]


class UsageParameters(StrictModel):
    """Query parameters of GET /v1/admin/usage: `since` is the first and `until` the last day to report, such as
    2026-11-28. Both may be left out.
    """

    since: _Day | None = None
    until: _Day | None = None


class UsageEntry(BaseModel):
    """The number of requests and tokens of one API key with one model on one day. `key_name` is null for requests
    without a key.

    `requests` counts the requests that were answered, `refused` the requests that got an error instead. `prompt_tokens`
    includes `cached_tokens`, the tokens that were found in the prefix cache.
    """

    object: Literal["usage"]
    day: date
    key_name: str | None
    model: str
    requests: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class UsageResponse(BaseModel):
    """Response of GET /v1/admin/usage: one entry for each day, API key and model, oldest day first."""

    object: Literal["list"]
    data: list[UsageEntry]


class CancelledRequest(BaseModel):
    """Response of POST /v1/requests/{request_id}/cancel. It confirms that the request with these ids has been
    cancelled.
    """

    id: str
    unique_id: str
    object: Literal["request"]
    cancelled: Literal[True]


class EndedReasoning(BaseModel):
    """Response of POST /v1/requests/{request_id}/end_reasoning. `reasoning_ended` is false if the server does not know
    the format in which the request's model writes reasoning.
    """

    id: str
    unique_id: str
    object: Literal["request"]
    reasoning_ended: bool


def _devices(value: str) -> str:
    try:
        return ",".join(device_list(value))
    except ValueError as error:
        raise ValueError(f"must be in the format of GENAI_DEVICE: {error}") from None


class LoadModelRequest(StrictModel):
    """Body of POST /v1/admin/models/load: the name under which to serve the model, the path of its directory on the
    server and, optionally, its devices, chat template and draft model. With `wait` false, the server responds before
    the model is loaded.
    """

    name: ModelName
    path: str = Field(min_length=1, description="Path of the model directory on the server.")
    device: Annotated[str, AfterValidator(_devices)] | None = Field(
        None, description="Devices, in the format of GENAI_DEVICE, which is the default."
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description="Chat template to use instead of the model's own: a file or a name, as in GENAI_CHAT_TEMPLATE.",
    )
    draft_model: str | None = Field(
        None, min_length=1, description="Path of its draft model's directory on the server, as in GENAI_DRAFT_MODEL."
    )
    wait: bool | None = Field(
        None, description="By default, respond when the model has loaded or failed to load; false: respond at once."
    )


class UnloadModelRequest(StrictModel):
    """Body of POST /v1/admin/models/unload: the name of the model, and for how many seconds running answers may
    continue (`timeout`; GENAI_DRAIN_TIMEOUT by default). With `wait` false, the server responds before the model's
    memory is free.
    """

    name: ServedName
    timeout: float | None = Field(
        None, ge=0, le=86400, description="Seconds that running answers may continue; by default GENAI_DRAIN_TIMEOUT."
    )
    wait: bool | None = Field(
        None, description="By default, respond when the model's memory is free; false: respond at once."
    )


class AliasRequest(StrictModel):
    """Body of POST /v1/admin/models/alias, which gives a model a second name. `name` is the model that `alias` stands
    for; null removes the alias.
    """

    alias: ModelName
    name: ServedName | None


class LoadAdapterRequest(StrictModel):
    """Body of POST /v1/admin/adapters/load: the name of the LoRA adapter, the path of its file on the server, and the
    model that it belongs to (by default the first one).
    """

    model: ServedName | None = Field(None, description="Model that the adapter belongs to; by default the first one.")
    name: AdapterName
    path: str = Field(min_length=1, description="Path of the adapter file on the server.")


class UnloadAdapterRequest(StrictModel):
    """Body of POST /v1/admin/adapters/unload: the name of the LoRA adapter, and the model that it belongs to (by
    default the first one).
    """

    model: ServedName | None = Field(None, description="Model that the adapter belongs to; by default the first one.")
    name: AdapterName
