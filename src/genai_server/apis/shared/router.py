"""Routers of the APIs, and OpenAPI's description of their errors."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from genai_server.generation.parameters.base import ErrorResponse

# Begins a reference to a schema in OpenAPI's document.
REFERENCE = "#/components/schemas/"


def error_responses(*codes: int, error: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of errors with these statuses; `error` is the form of their bodies.

    It refers to the form, which openapi.py describes. FastAPI would build a validator for each route and status, which
    takes a tenth of a second of each start.
    """
    body = {"content": {"application/json": {"schema": {"$ref": f"{REFERENCE}{error.__name__}"}}}}
    return dict.fromkeys(codes, body)


class VersionedRouter(APIRouter):
    """Serves each path below /v1 without this prefix, too. `codes` are further statuses of errors."""

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
