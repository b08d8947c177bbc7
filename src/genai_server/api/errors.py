"""The one table from errors to HTTP, and the bodies that clients get, before and after the response's headers alike.

Anthropic's paths have errors in Anthropic's form, all others in OpenAI's.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from genai_server import errors
from genai_server.anthropic_api.error import error_object
from genai_server.errors import GenaiServerError

log = logging.getLogger(__name__)

# status and OpenAI's error type; an error without a row of its own has its nearest ancestor's.
TABLE: Mapping[type[GenaiServerError], tuple[int, str]] = {
    errors.GenaiServerError: (500, "server_error"),
    errors.RequestError: (400, "invalid_request_error"),
    errors.ModelNotFound: (404, "invalid_request_error"),
    errors.RequestNotFound: (404, "invalid_request_error"),
    errors.ResponseNotFound: (404, "invalid_request_error"),
    errors.BodyTooSlow: (408, "invalid_request_error"),
    errors.InvalidApiKey: (401, "invalid_request_error"),
    errors.RateLimitExceeded: (429, "rate_limit_error"),
    errors.ProfileNotFound: (404, "invalid_request_error"),
    errors.AdminForbidden: (403, "permission_error"),
    errors.Unavailable: (503, "service_unavailable_error"),
    errors.ModelUnloaded: (503, "service_unavailable_error"),
    errors.GrammarFailed: (400, "invalid_request_error"),
    errors.ServerStopping: (503, "service_unavailable_error"),
}
# Headers of every response: nobody guesses at a kind of content, keeps an answer that may be private, or shows /docs in
# a frame of his own.
FOR_BROWSERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
}
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_MOST_SHOWN = 100
# A value of which only the size is wrong has the type that is meant, which of a union's members is then clear.
_SIZES = {"string_too_long", "string_too_short", "too_long", "too_short"}
_ANTHROPIC_PATH = re.compile(r"(/v1)?/messages(/.*)?")
# pydantic's kinds of findings in plain words; a kind that is not here speaks for itself.
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
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} character(s)",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "too_long": "must have at most {max_length} element(s), and has {actual_length}",
    "too_short": "must have at least {min_length} element(s)",
}


def http_status(error: GenaiServerError) -> tuple[int, str]:
    """HTTP status and OpenAI's error type."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def error_body(error: GenaiServerError) -> dict[str, Any]:
    """OpenAI's form of an error."""
    _, kind = http_status(error)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: GenaiServerError, request_id: str) -> dict[str, Any]:
    """Anthropic's form of an error."""
    status, _ = http_status(error)
    return error_object(status, error.message, error.code, request_id)


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is for one of Anthropic's paths."""
    return _ANTHROPIC_PATH.fullmatch(scope["path"]) is not None


def request_id_headers(scope: Scope) -> dict[str, str]:
    """The name of a request, where its client looks for it."""
    name: str = scope["state"]["request_id"]
    return {"x-request-id": name, "request-id": name} if speaks_anthropic(scope) else {"x-request-id": name}


def error_response(error: GenaiServerError, scope: Scope) -> JSONResponse:
    """The whole response to the request of this scope, for errors before the headers."""
    status, _ = http_status(error)
    scope["state"]["error_code"] = error.code
    body = anthropic_body(error, scope["state"]["request_id"]) if speaks_anthropic(scope) else error_body(error)
    headers = None if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if isinstance(error, errors.InvalidApiKey):
        headers = {"www-authenticate": "Bearer"}
    return JSONResponse(body, status, headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the app answer in this form."""

    @app.exception_handler(GenaiServerError)
    async def ours(request: Request, error: GenaiServerError) -> JSONResponse:
        return error_response(error, request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(from_validation(error), request.scope)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        reason = HTTPStatus(error.status_code)
        message = f"{reason.phrase}: {request.method} {request.url.path[:_MOST_SHOWN]}"
        kind, code = "invalid_request_error", reason.name.lower()
        body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        request.state.error_code = code
        if speaks_anthropic(request.scope):
            body = error_object(reason, message, code, request.state.request_id)
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(_methods(app, request))  # Starlette names those of one route only
        return JSONResponse(body, error.status_code, headers=headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        response = error_response(GenaiServerError("internal error; the server's log has more"), request.scope)
        # This handler runs outside the middleware that names the request.
        response.headers.update(FOR_BROWSERS | request_id_headers(request.scope))
        return response


def _methods(app: FastAPI, request: Request) -> list[str]:
    """What a path can be asked; if it is documented, not by routes that have a parameter in its place."""
    documented = app.openapi()["paths"].get(request.scope["path"])
    if documented is not None:
        return sorted(method.upper() for method in documented)
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    return [m for m, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in app.routes)]


def from_validation(error: RequestValidationError) -> GenaiServerError:
    """The first of pydantic's findings, naming the field, what it must be and what was given."""
    # Of a union, the nearest.
    first = max(error.errors(), key=lambda finding: (finding["type"] in _SIZES, len(_path(finding, error.body))))
    if first["type"] == "json_invalid":
        return errors.MalformedBody(f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    field = _field_name(_path(first, error.body))
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
    given = repr(first["input"])
    if len(given) > _MOST_SHOWN:
        given = given[:_MOST_SHOWN] + "…"
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] in _RULES:
        rule = _RULES[first["type"]].format_map(first.get("ctx", {}))
    found = errors.WrongType if first["type"].endswith("_type") else errors.InvalidField
    return found(f"{field or 'the body'} {rule}; given {given}", param=field)


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
