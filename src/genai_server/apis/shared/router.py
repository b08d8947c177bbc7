"""What the modules of the APIs need to create their FastAPI routers: `VersionedRouter`, and `error_responses`, which
describes their errors in the OpenAPI document.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from genai_server.generation.parameters.base import ErrorResponse

# Begins a reference to a schema in OpenAPI's document.
REFERENCE = "#/components/schemas/"


def error_responses(*codes: int, error: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of error responses with the HTTP statuses `codes`, for the argument `responses` of
    a router or route. `error` is the pydantic model of the bodies of these responses.

    The description only refers to the model by its name; the module `openapi` adds the schema. FastAPI would otherwise
    build a validator for each route and status, which takes a tenth of a second at each start.
    """
    body = {"content": {"application/json": {"schema": {"$ref": f"{REFERENCE}{error.__name__}"}}}}
    return dict.fromkeys(codes, body)


class VersionedRouter(APIRouter):
    """A FastAPI router that serves each path below /v1 also without this prefix, such as /files for /v1/files.

    All of its routes are documented with the error statuses 400, 404, 500 and 503, and with those in `codes`; `error`
    is the pydantic model of the bodies of errors. `tag` groups the routes in the documentation.
    """

    def __init__(
        self,
        route_class: type[APIRoute],
        tag: str,
        *,
        error: type[BaseModel] = ErrorResponse,
        codes: tuple[int, ...] = (),
    ) -> None:
        responses = error_responses(400, 404, 500, 503, *codes, error=error)
        super().__init__(route_class=route_class, tags=[tag], responses=responses)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, endpoint, **options)
        if path.startswith("/v1/"):
            super().add_api_route(path.removeprefix("/v1"), endpoint, **{**options, "include_in_schema": False})
