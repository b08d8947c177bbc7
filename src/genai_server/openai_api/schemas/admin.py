"""Bodies of the admin endpoints."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from genai_server.openai_api.schemas.base import Wire, elements, field_error
from genai_server.profile_plan import PREFIX, ProfilePlan, SlowTokens


def _profile_prefix(value: str) -> str:
    if not PREFIX.fullmatch(value):
        raise ValueError(
            'must be "0", "1" or a prefix for the files, which is a name and no path: '
            "1 to 64 letters, digits, dots, dashes and underscores, first a letter or digit"
        )
    return value


def _session_prefix(value: str) -> str:
    if not PREFIX.fullmatch(value) or value in ("0", "1"):
        raise ValueError(
            "must be a name and no path, and not 0 or 1: "
            "1 to 64 letters, digits, dots, dashes and underscores, first a letter or digit"
        )
    return value


ProfilePrefix = Annotated[str, AfterValidator(_profile_prefix)]
SessionPrefix = Annotated[str, AfterValidator(_session_prefix)]
# More tokens than any answer has.
_MOST = 1_000_000
TokenIndex = Annotated[int, Field(ge=0, le=_MOST)]


class RuntimeOptionsRequest(Wire):
    """Body of POST /v1/admin/runtime_options: at least one of the two options."""

    terminate_session: Literal["0", "1"] | None = Field(None, description='"1" ends, "0" recovers.')
    enable_profiling: ProfilePrefix | None = Field(
        None,
        description='"1", "0", or a prefix for the names of the files.',
    )
    model: str | None = Field(None, description="Of several models, this one; all if left out.")
    device: str | None = None
    request_id: str | None = Field(None, min_length=1, description="Only this request: its unique_id, or its id.")


class ProfileRequest(Wire):
    """Body of POST /v1/admin/profiles: which requests and tokens to profile, from when on and for how long."""

    model: str | None = Field(None, description="Needed if there are several, without request_id.")
    device: str | None = Field(None, description="Likewise.")
    request_id: str | None = Field(None, min_length=1, description="Only this request, which runs or waits.")
    prefix: SessionPrefix = Field("session", description="What the names of the files and of the session begin with.")
    phase: Literal["prefill", "decode"] | None = Field(None, description="Only prompts, or only what follows.")
    first_tokens: int | None = Field(None, ge=1, le=_MOST, description="Prompts, and so many tokens of each answer.")
    tokens: Annotated[list[TokenIndex], elements(2, least=2)] | None = Field(
        None, description="The first and the last token of each answer, counted from 0, which comes of the prompt."
    )
    max_tokens: int = Field(256, ge=1, le=_MOST, description="The session ends after so many profiled tokens,")
    max_seconds: float = Field(3600.0, gt=0, le=7 * 86400, description="or after so many seconds.")
    slow_token_ms: float | None = Field(None, gt=0, le=1e6, description="Wait until a token takes longer than this,")
    slow_token_ratio: float | None = Field(None, gt=1, le=1e6, description="or than this many times the median.")
    next_tokens: int | None = Field(None, ge=1, le=_MOST, description="So many tokens after a slow one are profiled.")
    max_per_hour: int | None = Field(None, ge=1, le=3600, description="At most so many slow tokens count an hour.")

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        windows = [name for name in ("phase", "first_tokens", "tokens") if getattr(self, name) is not None]
        if len(windows) > 1:
            raise field_error(windows[1], f"cannot be given beside {windows[0]}")
        if self.tokens is not None and self.tokens[1] < self.tokens[0]:
            raise field_error("tokens", f"must have its first token first; given {self.tokens}")
        triggers = [name for name in ("slow_token_ms", "slow_token_ratio") if getattr(self, name) is not None]
        if len(triggers) > 1:
            raise field_error(triggers[1], f"cannot be given beside {triggers[0]}")
        if triggers and self.phase == "prefill":
            raise field_error(triggers[0], "is about tokens after the prompt; given phase 'prefill'")
        for name in ("next_tokens", "max_per_hour"):
            if getattr(self, name) is not None and not triggers:
                raise field_error(name, "is only allowed with slow_token_ms or slow_token_ratio")
        return self

    def plan(self) -> ProfilePlan:
        """What the engine is to do."""
        first, last = self._window()
        slow = None
        if self.slow_token_ms is not None or self.slow_token_ratio is not None:
            given = {"num_tokens": self.next_tokens, "max_per_hour": self.max_per_hour}
            kept = {name: value for name, value in given.items() if value is not None}
            slow = SlowTokens(self.slow_token_ms, self.slow_token_ratio, **kept)
        return ProfilePlan(self.prefix, self.request_id, first, last, self.max_tokens, self.max_seconds, slow)

    def _window(self) -> tuple[int, int | None]:
        if self.tokens is not None:
            return self.tokens[0], self.tokens[1]
        if self.first_tokens is not None:
            return 0, self.first_tokens - 1
        return (1, None) if self.phase == "decode" else (0, 0 if self.phase == "prefill" else None)


class NoFields(Wire):
    """The body of a POST that says all in its path."""


class RequestEntry(BaseModel):
    """A request that runs or waits, or one of its several answers; `age` counts the seconds since its engine has it.

    `id` is its `X-Request-ID`, which a client may give to several; no other request has the same `unique_id`.
    """

    id: str
    unique_id: str
    object: Literal["request"]
    model: str
    device: str
    phase: Literal["queued", "prefill", "decode"]
    age: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class RequestsResponse(BaseModel):
    """Body of GET /v1/requests, on each device in order of arrival."""

    object: Literal["list"]
    data: list[RequestEntry]


class CancelledRequest(BaseModel):
    """Says that a request has ended."""

    id: str
    unique_id: str
    object: Literal["request"]
    cancelled: Literal[True]
