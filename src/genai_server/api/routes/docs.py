"""`GET /docs`: the API's description in Swagger UI, whose files come with this package."""

from importlib.resources import files
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response

router = APIRouter(include_in_schema=False)

_FOLDER = files("genai_server.api").joinpath("swagger_ui")
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
# Everything comes from this server; Swagger UI has pictures in its style sheet.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@router.get("/docs")
def docs() -> Response:
    """The page."""
    return _file("page.html")


@router.get("/docs/{name}")
def asset(name: Literal["swagger-ui-bundle.js", "swagger-ui.css", "start.js"]) -> Response:
    """A file of the page."""
    return _file(name)


def _file(name: str) -> Response:
    return Response(
        _FOLDER.joinpath(name).read_bytes(),
        media_type=_TYPES[name.rpartition(".")[2]],
        headers={"content-security-policy": _POLICY},
    )
