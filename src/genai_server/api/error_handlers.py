"""Answers the errors of FastAPI's app with the bodies of `api/errors.py`."""

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from genai_server.api.errors import error_response, from_findings, malformed, plain_error_body
from genai_server.errors import GenaiServerError

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_MOST_SHOWN = 100


def install_error_handlers(app: FastAPI) -> None:
    """Answer the app's errors with their bodies; middleware/internal_errors.py answers all other exceptions."""

    @app.exception_handler(GenaiServerError)
    async def ours(request: Request, error: GenaiServerError) -> JSONResponse:
        return error_response(error, request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(from_findings(error.errors(), error.body), request.scope)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        # Nothing is posted to an id alone, unless there is a route for it, so a name in its place is a wrong path.
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and request.method == "POST" and request.path_params:
            error = HTTPException(HTTPStatus.NOT_FOUND)
        cause = error.__cause__  # FastAPI hides what it met while it read a body
        if isinstance(cause, ValueError):
            cause = malformed(cause)
        if isinstance(cause, GenaiServerError):
            return error_response(cause, request.scope)
        reason = HTTPStatus(error.status_code)
        message = f"{reason.phrase}: {request.method} {request.url.path[:_MOST_SHOWN]}"
        kind, code = "invalid_request_error", reason.name.lower()
        request.state.error_code = code
        body = plain_error_body(request.scope, reason, kind, message, code)
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(_methods(app, request))  # Starlette names those of one route only
        return JSONResponse(body, error.status_code, headers=headers)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """The methods of a path. A documented path has its own only, not those of a route with a parameter in its place."""
    documented = app.openapi()["paths"].get(request.scope["path"])
    if documented is not None:
        found = {method.upper() for method in documented}
    else:
        scopes = {method: {**request.scope, "method": method} for method in _METHODS}
        found = {m for m, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in app.routes)}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))  # api/middleware/head_requests.py
