"""The one table from errors to HTTP, and the bodies that clients get, before and after the response's headers alike.

Anthropic's and Ollama's paths have errors in the form of these APIs, all others in OpenAI's.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope

from genai_server import errors
from genai_server.anthropic_api.error import error_object
from genai_server.errors import GenaiServerError
from genai_server.ollama_api.error import error_object as ollama_error
from genai_server.quoted_values import quoted

log = logging.getLogger(__name__)

# HTTP status and OpenAI's error type. An error without a row has that of its nearest ancestor.
TABLE: Mapping[type[GenaiServerError], tuple[int, str]] = {
    errors.GenaiServerError: (500, "server_error"),
    errors.RequestError: (400, "invalid_request_error"),
    errors.ModelNotFound: (404, "invalid_request_error"),
    errors.RequestNotFound: (404, "invalid_request_error"),
    errors.AmbiguousRequest: (409, "invalid_request_error"),
    errors.ResponseNotFound: (404, "invalid_request_error"),
    errors.ConversationNotFound: (404, "invalid_request_error"),
    errors.HeadTooLarge: (431, "invalid_request_error"),
    errors.BodyTooSlow: (408, "invalid_request_error"),
    errors.InvalidApiKey: (401, "invalid_request_error"),
    errors.RateLimitExceeded: (429, "rate_limit_error"),
    errors.ProfileNotFound: (404, "invalid_request_error"),
    errors.AdminForbidden: (403, "permission_error"),
    # A repository that is none, or a hub that cannot be reached; raised for what an operator asks only.
    errors.PullFailed: (400, "invalid_request_error"),
    errors.Unavailable: (503, "service_unavailable_error"),
    errors.DeadlinePassed: (504, "server_error"),
    errors.ModelUnloaded: (503, "service_unavailable_error"),
    errors.GrammarFailed: (400, "invalid_request_error"),
    errors.ServerStopping: (503, "service_unavailable_error"),
}
# Clients look for these words of each API, and then shorten the conversation.
PROMPT_TOO_LONG = {
    "anthropic": "prompt is too long: {tokens} tokens > {limit} maximum, answer included ({limited_by})",
    "openai": "This model's maximum context length is {limit} tokens. However, your {param} resulted in {tokens} "
    "tokens, and the answer needs at least one. Please reduce the length ({limited_by}).",
    "ollama": "the input length exceeds the context length: it has {tokens} tokens, and prompt and answer together may "
    "have {limit} ({limited_by})",
}
# Headers of every response that has none of its own by these names: browsers do not guess the content's type, do not
# keep an answer that may be private, and show nothing in a frame of another site.
FOR_BROWSERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
}
# A value with the right type but a wrong size shows which of a union's members the client means.
_SIZES = {"string_too_long", "string_too_short", "too_long", "too_short"}
_ANTHROPIC_PATH = re.compile(r"(/v1)?/messages(/.*)?")
# Not those of LM Studio's lists of models, whose errors have OpenAI's form.
_OLLAMA_PATH = re.compile(r"/api/(?!v[01]/).*", re.DOTALL)
# Both APIs have these; Anthropic's clients send a header of their own.
_SHARED_PATH = re.compile(r"(/v1)?/models(/.*)?")
_ANTHROPIC_HEADER = b"anthropic-version"
# pydantic's kinds of findings in plain words; of other kinds pydantic's own message is shown.
_RULES = {
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} character(s)",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "too_long": "must have at most {max_length} element(s), and has {actual_length}",
    "too_short": "must have at least {min_length} element(s)",
}
# Values as pydantic names them, and as JSON does.
_JSON = {"'": '"', "True": "true", "False": "false", "None": "null"}
_PYTHONS = re.compile("|".join(_JSON))


def http_status(error: GenaiServerError) -> tuple[int, str]:
    """HTTP status and OpenAI's error type."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def internal_error() -> GenaiServerError:
    """The error that a client receives for an unexpected exception."""
    return GenaiServerError("internal error; the server's log has more")


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is for one of Anthropic's paths, or is for a path of both APIs and has Anthropic's header."""
    if _SHARED_PATH.fullmatch(scope["path"]) is not None:
        return any(name == _ANTHROPIC_HEADER for name, _ in scope["headers"])
    return _ANTHROPIC_PATH.fullmatch(scope["path"]) is not None


def speaks_ollama(scope: Scope) -> bool:
    """Whether a request is for one of Ollama's paths."""
    return _OLLAMA_PATH.fullmatch(scope["path"]) is not None


def request_id_headers(scope: Scope) -> dict[str, str]:
    """The request's id, in the headers where its client looks for it."""
    name: str = scope["state"]["request_id"]
    return {"x-request-id": name, "request-id": name} if speaks_anthropic(scope) else {"x-request-id": name}


def error_body(error: GenaiServerError, scope: Scope | None = None) -> dict[str, Any]:
    """An error in the form of the API that the scope's request is for; in OpenAI's without one."""
    status, kind = http_status(error)
    message = error.message
    if isinstance(error, errors.PromptTooLong) and error.tokens:
        message = PROMPT_TOO_LONG[_api_of(scope)].format_map(vars(error))
    return plain_error_body(scope, status, kind, message, error.code, error.param)


def error_response(error: GenaiServerError, scope: Scope) -> JSONResponse:
    """The whole response to the request of this scope, for errors before the headers."""
    status, _ = http_status(error)
    scope["state"]["error_code"] = error.code
    body = error_body(error, scope)
    headers = None if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if isinstance(error, errors.InvalidApiKey):
        headers = {"www-authenticate": "Bearer"}
    return JSONResponse(body, status, headers)


def plain_error_body(
    scope: Scope | None, status: int, kind: str, message: str, code: str, param: str | None = None
) -> dict[str, Any]:
    """An error that has no class, in the form of the scope's API."""
    api = _api_of(scope)
    if api == "ollama":
        return ollama_error(message)
    if scope is not None and api == "anthropic":
        return error_object(status, message, code, scope["state"]["request_id"])
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _api_of(scope: Scope | None) -> str:
    if scope is None:
        return "openai"
    return "ollama" if speaks_ollama(scope) else "anthropic" if speaks_anthropic(scope) else "openai"


def malformed(error: ValueError) -> GenaiServerError:
    """The error that tells the client why Python cannot read a JSON text."""
    match error:
        case json.JSONDecodeError():
            return errors.MalformedBody(f"the body is not JSON: {error.msg} at character {error.pos}")
        case UnicodeDecodeError():
            byte = error.object[error.start]
            return errors.MalformedBody(f"the body is not UTF-8: byte 0x{byte:02x} at {error.start}, {error.reason}")
    # A number of too many digits. Behind the semicolon Python advises its programmers.
    return errors.MalformedBody(f"the body has a number that cannot be read: {str(error).partition(';')[0]}")


def from_findings(findings: Sequence[Mapping[str, Any]], body: Any) -> GenaiServerError:
    """The first of pydantic's findings in a body, naming the field, what it must be and what was given."""
    # Of a union, the nearest.
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
        return errors.UnknownField(f"{field} is not a field that this endpoint knows", param=field)
    if first["type"] == "none_required":
        return errors.UnsupportedField(f"{field} is not supported here: leave it out, or null", param=field)
    if isinstance(first["input"], bytes):
        return errors.MalformedBody("the body is not declared as JSON; send content-type: application/json")
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] in _RULES:
        rule = _RULES[first["type"]].format_map(first.get("ctx", {}))
    if first["type"] == "literal_error":
        rule = _PYTHONS.sub(lambda found: _JSON[found[0]], rule)
    found = errors.WrongType if first["type"].endswith("_type") else errors.InvalidField
    return found(f"{field or 'the body'} {rule}; given {quoted(first['input'])}", param=field)


def _path(finding: Mapping[str, Any], body: Any) -> list[str | int]:
    """Where in the body a finding lies: pydantic's location without its names for the members of a union."""
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
