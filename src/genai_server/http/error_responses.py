"""Maps errors to HTTP statuses and error bodies (`error_response`, `error_body`). The body is the same in a response
and in a stream that has begun.

Each error is rendered once: in the format and words of the request's API, and with the client's names of fields
(http/error_wording.py).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope

from genai_server import errors
from genai_server.errors import GenaiServerError, InvalidField, escaped
from genai_server.http.error_wording import DEFAULT, ErrorParts, FieldNames
from genai_server.http.request_state import request_state

log = logging.getLogger(__name__)

# HTTP status and OpenAI's error type. An error without an entry uses that of its nearest base class.
TABLE: Mapping[type[GenaiServerError], tuple[int, str]] = {
    errors.GenaiServerError: (500, "server_error"),
    errors.RequestError: (400, "invalid_request_error"),
    errors.ModelNotFound: (404, "invalid_request_error"),
    errors.RequestNotFound: (404, "invalid_request_error"),
    errors.AmbiguousRequest: (409, "invalid_request_error"),
    errors.ResponseNotFound: (404, "invalid_request_error"),
    errors.ConversationNotFound: (404, "invalid_request_error"),
    errors.StoredFileNotFound: (404, "invalid_request_error"),
    errors.BatchNotFound: (404, "invalid_request_error"),
    errors.HeadTooLarge: (431, "invalid_request_error"),
    errors.BodyTooSlow: (408, "invalid_request_error"),
    errors.InvalidApiKey: (401, "invalid_request_error"),
    errors.RateLimitExceeded: (429, "rate_limit_error"),
    errors.ProfileNotFound: (404, "invalid_request_error"),
    errors.AdminForbidden: (403, "permission_error"),
    errors.OriginForbidden: (403, "permission_error"),
    # Not a repository, or the hub is unreachable. Raised only for operators' requests.
    errors.PullFailed: (400, "invalid_request_error"),
    errors.Unavailable: (503, "service_unavailable_error"),
    errors.DeadlinePassed: (504, "server_error"),
    errors.ModelUnloaded: (503, "service_unavailable_error"),
    errors.GrammarFailed: (400, "invalid_request_error"),
    errors.ServerStopping: (503, "service_unavailable_error"),
}
# Default headers of all responses: browsers do not guess the content type, do not cache possibly private answers, and
# do not show the server in a frame of another site.
BROWSER_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
}
# A value of the right type but wrong size identifies the union member that the client meant.
_SIZES = {"string_too_long", "string_too_short", "too_long", "too_short"}


def http_status(error: GenaiServerError) -> tuple[int, str]:
    """Return the HTTP status of an error, and what OpenAI's error bodies have as its `type`, such as
    "invalid_request_error".
    """
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def internal_error() -> GenaiServerError:
    """Return the error that clients receive in place of an unexpected exception, which only the log describes."""
    return GenaiServerError("internal error; see the server log")


def error_body(error: GenaiServerError, scope: Scope | None = None) -> dict[str, Any]:
    """Return the body of the response for an error, in the format and words of the API to which the request with the
    ASGI scope `scope` belongs. Without a scope, OpenAI's format and words are used.
    """
    status, kind = http_status(error)
    names = FieldNames() if scope is None else request_state(scope).leniency.names
    dialect = DEFAULT if scope is None else request_state(scope).dialect
    message, param = named(error, names)
    if error.facts and error.code in dialect.words:
        message = dialect.words[error.code].format_map({**error.facts, "param": param, "message": message})
    return plain_error_body(scope, ErrorParts(status, kind, message, error.code, param))


def named(error: GenaiServerError, names: FieldNames) -> tuple[str, str | None]:
    """Return the message of an error, and the path of the field that the error is about, both with the field names of
    the client's API instead of those of the chat request. The path is None if the error is about no field.
    """
    if error.param is None:
        return error.message, None
    if not isinstance(error, InvalidField):
        return error.message, names.param(error.param)
    other = None if error.other is None else names.name(error.other)
    value = names.value(error.param, error.given)
    return error.sentence(names.name(error.param), other, value), names.param(error.param)


def error_response(error: GenaiServerError, scope: Scope) -> JSONResponse:
    """Return the HTTP response for an error that occurred before the response headers were sent. The request's record
    gets the error's code. The error's traceback is removed.
    """
    status, _ = http_status(error)
    record = request_state(scope).record
    record.error_code = error.code
    if isinstance(error, errors.ModelNotFound):
        record.unknown_model = escaped((error.name or "")[:100])
    body = error_body(error, scope)
    headers = None if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if isinstance(error, errors.InvalidApiKey):
        headers = {"www-authenticate": "Bearer"}
    _release_frames(error)
    return JSONResponse(body, status, headers)


def _release_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an error and of the errors that caused it, because the frames in them keep the request's
    body in memory.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def plain_error_body(scope: Scope | None, error: ErrorParts) -> dict[str, Any]:
    """Return the body of the response for an error that is given by its parts, because no exception class exists for
    it. The body has the format of the API to which the request with the ASGI scope `scope` belongs, or OpenAI's without
    a scope.
    """
    if scope is None:
        return DEFAULT.error_body(error)
    state = request_state(scope)
    return state.dialect.error_body(replace(error, request_id=state.record.request_id))


def malformed(error: ValueError) -> GenaiServerError:
    """Return the error for a body that is not JSON. `error` is the exception of Python's JSON parser."""
    match error:
        case json.JSONDecodeError():
            return errors.MalformedBody(f"the body is not JSON: {error.msg} at character {error.pos}")
        case UnicodeDecodeError():
            byte = error.object[error.start]
            return errors.MalformedBody(f"the body is not UTF-8: byte 0x{byte:02x} at {error.start}, {error.reason}")
    # A number with too many digits. The text after the semicolon is advice to Python programmers.
    return errors.MalformedBody(f"the body has a number that cannot be parsed: {str(error).partition(';')[0]}")


def from_findings(findings: Sequence[Mapping[str, Any]], body: Any) -> GenaiServerError:
    """Return the error for an invalid body. `findings` is pydantic's list of errors, of which the most helpful one is
    chosen. The error names the field, what its value must be, and the given value.
    """
    # For a union, choose the error of the closest member.
    first = max(findings, key=lambda finding: (finding["type"] in _SIZES, len(_path(finding, body))))
    if first["type"] == "json_invalid":
        return errors.MalformedBody(f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    path = _field_name(_path(first, body))
    if first["type"] in ("field", "missing_field"):
        inner = first["ctx"]["field"]
        kind = errors.MissingField if first["type"] == "missing_field" else InvalidField
        return kind(f"{path}.{inner}" if path else inner, first["ctx"]["rule"])
    if path is None and (first["type"] == "missing" or first.get("input") is None):
        return errors.MissingField(None, "a JSON body is required")
    if first["type"] == "missing":
        return errors.MissingField(path, "is required")
    if first["type"] == "extra_forbidden":
        return errors.UnknownField(path, "is not a field of this endpoint")
    if first["type"] == "none_required":
        return errors.UnsupportedField(path, "is not supported: omit it or set it to null")
    if isinstance(first["input"], bytes):
        return errors.MalformedBody("the body is not declared as JSON; send content-type: application/json")
    error = errors.WrongType if first["type"].endswith("_type") else InvalidField
    rule = errors.rule_of(first)
    return error(path, rule if path else f"the body {rule}", given=first["input"])


def _path(finding: Mapping[str, Any], body: Any) -> list[str | int]:
    """Return the path in the body that `finding`, an entry of pydantic's list of errors, is about. The names of union
    members that pydantic inserts into the path are left out.
    """
    if finding["loc"][0] != "body":  # in the query
        return list(finding["loc"][1:])
    path: list[str | int] = []
    value = body
    for part in finding["loc"][1:]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if finding["type"] != "missing" or part != finding["loc"][-1]:
                continue
        path.append(part)
    return path


def _field_name(path: Sequence[str | int]) -> str | None:
    """Return a path as text, such as `messages[0].role`; None if the path is empty, which stands for the whole body."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    return name.removeprefix(".") or None
