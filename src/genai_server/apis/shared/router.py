"""A router of an API whose paths begin with /v1."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from genai_server.apis.shared.base import ErrorResponse


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
        responses: dict[int | str, dict[str, Any]] = {code: {"model": error} for code in (400, 404, 500, 503, *codes)}
        super().__init__(route_class=route_class, tags=[tag], responses=responses)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, endpoint, **options)
        if path.startswith("/v1/"):
            super().add_api_route(path.removeprefix("/v1"), endpoint, **{**options, "include_in_schema": False})
