"""Maps errors to HTTP statuses and response bodies, which are the same before and after the response's headers.

Errors of Anthropic's and Ollama's paths have these APIs' formats, all others OpenAI's.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope

from genai_server import errors
from genai_server.apis.shared.base import JsonObject
from genai_server.errors import GenaiServerError
from genai_server.http.request_state import request_state, speaks_anthropic
from genai_server.quoted_values import quoted

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
# Clients recognize these messages of each API and then shorten the conversation.
PROMPT_TOO_LONG = {
    "anthropic": "prompt is too long: {tokens} tokens > {limit} maximum, answer included ({limited_by})",
    "openai": "This model's maximum context length is {limit} tokens. However, your {param} resulted in {tokens} "
    "tokens, and the answer needs at least one. Please reduce the length ({limited_by}).",
    "ollama": "the input length exceeds the context length: it has {tokens} tokens, and prompt and answer together may "
    "have {limit} ({limited_by})",
}
# Default headers of all responses: browsers do not guess the content type, do not cache possibly private answers, and
# do not show the server in a frame of another site.
FOR_BROWSERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# A value of the right type but wrong size identifies the union member that the client meant.
_SIZES = {"string_too_long", "string_too_short", "too_long", "too_short"}
# Excludes LM Studio's model lists, whose errors have OpenAI's format.
_OLLAMA_PATH = re.compile(r"/api/(?!v[01]/).*", re.DOTALL)
# Messages for pydantic's error types; others use pydantic's own message.
_RULES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "too_long": "must have at most {max_length} elements, not {actual_length}",
    "too_short": "must have at least {min_length} elements",
}
# Python's notation of values, and JSON's.
_JSON = {"'": '"', "True": "true", "False": "false", "None": "null"}
_PYTHONS = re.compile("|".join(_JSON))


def http_status(error: GenaiServerError) -> tuple[int, str]:
    """HTTP status and OpenAI's error type."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def internal_error() -> GenaiServerError:
    """The error that a client receives for an unexpected exception."""
    return GenaiServerError("internal error; see the server log")


def error_body(error: GenaiServerError, scope: Scope | None = None) -> dict[str, Any]:
    """The body of an error in the format of the request's API; OpenAI's without a scope."""
    status, kind = http_status(error)
    message = error.message
    if isinstance(error, errors.PromptTooLong) and error.tokens:
        message = PROMPT_TOO_LONG[_api_of(scope)].format_map(vars(error))
    return plain_error_body(scope, status, kind, message, error.code, error.param)


def error_response(error: GenaiServerError, scope: Scope) -> JSONResponse:
    """The complete error response to the request of this scope, for errors before the headers are sent."""
    status, _ = http_status(error)
    request_state(scope).record.error_code = error.code
    body = error_body(error, scope)
    headers = None if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if isinstance(error, errors.InvalidApiKey):
        headers = {"www-authenticate": "Bearer"}
    _release_frames(error)
    return JSONResponse(body, status, headers)


def _release_frames(error: BaseException | None) -> None:
    """Release the frames of an error and of those it replaces: frames of tasks refer to the error, and to the body."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def plain_error_body(
    scope: Scope | None, status: int, kind: str, message: str, code: str, param: str | None = None
) -> dict[str, Any]:
    """The body of an error without an exception class, in the format of the scope's API."""
    api = _api_of(scope)
    if api == "ollama":
        return {"error": message}  # https://docs.ollama.com/api/errors
    if scope is not None and api == "anthropic":
        return anthropic_error(status, message, code, request_state(scope).record.request_id)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _api_of(scope: Scope | None) -> str:
    if scope is None:
        return "openai"
    if _OLLAMA_PATH.fullmatch(scope["path"]) is not None:
        return "ollama"
    return "anthropic" if speaks_anthropic(scope) else "openai"


def malformed(error: ValueError) -> GenaiServerError:
    """The error for a text that Python cannot parse as JSON."""
    match error:
        case json.JSONDecodeError():
            return errors.MalformedBody(f"the body is not JSON: {error.msg} at character {error.pos}")
        case UnicodeDecodeError():
            byte = error.object[error.start]
            return errors.MalformedBody(f"the body is not UTF-8: byte 0x{byte:02x} at {error.start}, {error.reason}")
    # A number with too many digits. The text after the semicolon is advice to Python programmers.
    return errors.MalformedBody(f"the body has a number that cannot be parsed: {str(error).partition(';')[0]}")


def from_findings(findings: Sequence[Mapping[str, Any]], body: Any) -> GenaiServerError:
    """The first of pydantic's errors as one that states the field, the rule and the given value."""
    # For a union, choose the error of the closest member.
    first = max(findings, key=lambda finding: (finding["type"] in _SIZES, len(_path(finding, body))))
    if first["type"] == "json_invalid":
        return errors.MalformedBody(f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    field = _field_name(_path(first, body))
    if first["type"] in ("field", "missing_field"):
        field = f"{field}.{first['ctx']['field']}" if field else first["ctx"]["field"]
        kind = errors.MissingField if first["type"] == "missing_field" else errors.InvalidField
        return kind(f"{field} {first['ctx']['rule']}", param=field)
    if first["type"] == "missing" or (field is None and first.get("input") is None):
        return errors.MissingField(f"{field or 'a JSON body'} is required", param=field)
    if first["type"] == "extra_forbidden":
        return errors.UnknownField(f"{field} is not a field of this endpoint", param=field)
    if first["type"] == "none_required":
        return errors.UnsupportedField(f"{field} is not supported: omit it or set it to null", param=field)
    if isinstance(first["input"], bytes):
        return errors.MalformedBody("the body is not declared as JSON; send content-type: application/json")
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] in _RULES:
        rule = _RULES[first["type"]].format_map(first.get("ctx", {}))
        if first.get("ctx", {}).get("min_length") == 1 and first["type"].endswith("too_short"):
            rule = "must not be empty"
    if first["type"] == "literal_error":
        rule = _PYTHONS.sub(lambda found: _JSON[found[0]], rule)
    found = errors.WrongType if first["type"].endswith("_type") else errors.InvalidField
    return found(f"{field or 'the body'} {rule}; given {quoted(first['input'])}", param=field)


def _path(finding: Mapping[str, Any], body: Any) -> list[str | int]:
    """The location of an error in the body: pydantic's location without the names of union members."""
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
    """`messages[0].role` for ["messages", 0, "role"], None for the body itself."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    return name.removeprefix(".") or None


def anthropic_error(status: int, message: str, code: str, request_id: str) -> JsonObject:
    """The body of an error in the format of Anthropic's API, or the data of the event that ends a stream
    (https://docs.anthropic.com/en/api/errors). `status` is the HTTP status.
    """
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message, "details": {"error_code": code}}
    return {"type": "error", "error": error, "request_id": request_id}
