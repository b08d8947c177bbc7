"""The exception handlers of the FastAPI app, which answer with the error bodies of http/error_responses.py
(`install_error_handlers`).

The parent of API processes needs the error bodies, too, but not these handlers, because importing FastAPI takes a
second.
"""

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from genai_server.errors import GenaiServerError
from genai_server.http.error_responses import error_response, from_findings, malformed, plain_error_body
from genai_server.http.error_wording import ErrorParts
from genai_server.http.request_state import request_state

_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_MAX_PATH_SHOWN = 100


def install_error_handlers(app: FastAPI) -> None:
    """Install handlers in the app for the server's own errors, for requests that pydantic refuses, and for
    HTTPException.

    All other exceptions are handled by http/middleware/request_lifetime.py.
    """

    @app.exception_handler(GenaiServerError)
    async def ours(request: Request, error: GenaiServerError) -> JSONResponse:
        return error_response(error, request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(from_findings(error.errors(), error.body), request.scope)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        # A POST to a path that matches only a parameter, such as an id, is a wrong path rather than a wrong method.
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and request.method == "POST" and request.path_params:
            error = HTTPException(HTTPStatus.NOT_FOUND)
        cause = error.__cause__  # FastAPI wraps the exceptions raised while it reads a body
        if isinstance(cause, ValueError):
            cause = malformed(cause)
        if isinstance(cause, GenaiServerError):
            return error_response(cause, request.scope)
        reason = HTTPStatus(error.status_code)
        message = f"{reason.phrase}: {request.method} {request.scope['path'][:_MAX_PATH_SHOWN]}"
        kind, code = "invalid_request_error", reason.name.lower()
        request_state(request.scope).record.error_code = code
        body = plain_error_body(request.scope, ErrorParts(reason, kind, message, code))
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(_methods(app, request))  # Starlette lists the methods of only one route
        return JSONResponse(body, error.status_code, headers=headers)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Return the HTTP methods that the path of the request supports, sorted, for the header Allow. For a path in the
    OpenAPI document, these are the methods there; routes with a path parameter that would also match are ignored.
    """
    documented = app.openapi()["paths"].get(request.scope["path"])
    if documented is not None:
        methods = {method.upper() for method in documented}
    else:
        scopes = {method: {**request.scope, "method": method} for method in _METHODS}
        methods = {
            m for m, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in app.routes)
        }
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))  # http/middleware/request_lifetime.py
