"""Errors in the format of Anthropic's API (https://docs.anthropic.com/en/api/errors). `ANTHROPIC` is the dialect, with
the format and the wording of errors, that the error handlers use for requests of Anthropic's clients.
"""

import re
from typing import Any

from starlette.types import Scope

from genai_server.http.error_wording import Dialect, ErrorParts

_PATH = re.compile(r"(/v1)?/messages(/.*)?")
# Paths of OpenAI's API, too, distinguished by the header that Anthropic's clients send.
_SHARED_PATH = re.compile(r"(/v1)?/(models|files)(/.*)?")
_HEADER = b"anthropic-version"
# Types of errors by HTTP status; others are of the client below 500 and of the server from there on.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def speaks_anthropic(scope: Scope) -> bool:
    """Return whether a request expects errors in Anthropic's format: its path is one of Anthropic's API or, for paths
    that OpenAI's API has as well (such as /v1/models), it has Anthropic's header anthropic-version. `scope` is the
    request's ASGI scope.
    """
    if _SHARED_PATH.fullmatch(scope["path"]) is not None:
        return any(name == _HEADER for name, _ in scope["headers"])
    return _PATH.fullmatch(scope["path"]) is not None


def _body(error: ErrorParts) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {"type": kind, "message": error.message, "details": {"error_code": error.code}}
    return {"type": "error", "error": details, "request_id": error.request_id}


ANTHROPIC = Dialect(
    speaks_anthropic,
    _body,
    words={
        "context_length_exceeded": "prompt is too long: {tokens} tokens > {limit} maximum, answer included "
        "({limited_by})"
    },
    id_header="request-id",
)
