"""The one table from errors to HTTP, and the body that clients get, before and after the response's headers alike."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from genai_server import errors
from genai_server.errors import GenaiServerError

log = logging.getLogger(__name__)

# status and OpenAI's error type; an error without a row of its own has its nearest ancestor's.
TABLE: Mapping[type[GenaiServerError], tuple[int, str]] = {
    errors.GenaiServerError: (500, "server_error"),
    errors.RequestError: (400, "invalid_request_error"),
    errors.ModelNotFound: (404, "invalid_request_error"),
    errors.RequestNotFound: (404, "invalid_request_error"),
    errors.ResponseNotFound: (404, "invalid_request_error"),
    errors.AdminForbidden: (403, "permission_error"),
    errors.Unavailable: (503, "service_unavailable_error"),
    errors.ServerStopping: (503, "service_unavailable_error"),
}
# When a client may try again what could not be taken; engines restart and queues move on within seconds.
RETRY_AFTER_SECONDS = 1
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_MOST_SHOWN = 100
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
    "none_required": "must be null",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "too_short": "must have at least {min_length} element(s)",
}


def http_status(error: GenaiServerError) -> tuple[int, str]:
    """HTTP status and OpenAI's error type."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def error_body(error: GenaiServerError) -> dict[str, Any]:
    """OpenAI's form of an error."""
    _, kind = http_status(error)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_response(error: GenaiServerError) -> JSONResponse:
    """The whole response, for errors before the headers."""
    status, _ = http_status(error)
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if isinstance(error, errors.Unavailable) else None
    return JSONResponse(error_body(error), status, headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the app answer in this form."""

    @app.exception_handler(GenaiServerError)
    async def ours(request: Request, error: GenaiServerError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(from_validation(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        reason = HTTPStatus(error.status_code)
        detail = {
            "message": f"{reason.phrase}: {request.method} {request.url.path[:_MOST_SHOWN]}",
            "type": "invalid_request_error",
            "param": None,
            "code": reason.name.lower(),
        }
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(_methods(app, request))  # Starlette names those of one route only
        return JSONResponse({"error": detail}, error.status_code, headers=headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        response = error_response(GenaiServerError("internal error; the server's log has more"))
        # This handler runs outside the middleware that names the request.
        response.headers["x-request-id"] = request.state.request_id
        return response


def _methods(app: FastAPI, request: Request) -> list[str]:
    """What a path can be asked, by all of its routes."""
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    return [m for m, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in app.routes)]


def from_validation(error: RequestValidationError) -> GenaiServerError:
    """The first of pydantic's findings, naming the field, what it must be and what was given."""
    first = max(error.errors(), key=lambda finding: len(_path(finding, error.body)))  # of a union, the nearest
    if first["type"] == "json_invalid":
        return errors.MalformedBody(f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    field = _field_name(_path(first, error.body))
    if first["type"] == "field":
        field = f"{field}.{first['ctx']['field']}" if field else first["ctx"]["field"]
        return errors.InvalidField(f"{field} {first['ctx']['rule']}", param=field)
    if first["type"] == "missing" or (field is None and first.get("input") is None):
        return errors.InvalidField(f"{field or 'a JSON body'} is required", param=field)
    if first["type"] == "extra_forbidden":
        return errors.InvalidField(f"{field} is not a field that this endpoint knows", param=field)
    if isinstance(first["input"], bytes):
        return errors.MalformedBody("the body is not declared as JSON; send content-type: application/json")
    given = repr(first["input"])
    if len(given) > _MOST_SHOWN:
        given = given[:_MOST_SHOWN] + "…"
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] in _RULES:
        rule = _RULES[first["type"]].format_map(first.get("ctx", {}))
    return errors.InvalidField(f"{field or 'the body'} {rule}; given {given}", param=field)


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
