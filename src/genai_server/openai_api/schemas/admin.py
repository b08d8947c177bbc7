"""Bodies of the admin endpoints."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from genai_server.openai_api.schemas.base import Wire

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


class NoFields(Wire):
    """The body of a POST that says all in its path."""


class RequestEntry(BaseModel):
    """A request that runs or waits, or one of its several answers; `age` counts the seconds since its engine has it."""

    id: str
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
    object: Literal["request"]
    cancelled: Literal[True]
