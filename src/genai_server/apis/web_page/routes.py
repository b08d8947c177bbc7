"""The root path: the web page for browsers, server information for programs, and the API documentation.

The page's files contain no secrets and need no API key: the page asks for the key itself, and the page of /docs reads
the description of the API with the key that the page has.
"""

import mimetypes
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from genai_server import __version__
from genai_server.generation.dependencies import ServicesDep
from genai_server.profiles.html_report import inline_hashes
from genai_server.web.files import API_DOCS, PAGE, content_security_policy, names

# Mount points of the files of the page and of /docs.
PAGE_PATH = "/ui"
API_DOCS_PATH = "/docs/assets"
# The Windows registry may have another type, with which browsers refuse modules.
mimetypes.add_type("text/javascript", ".js")
# Not every system knows it.
mimetypes.add_type("font/woff2", ".woff2")

router = APIRouter(tags=["status"])


class WebFiles(StaticFiles):
    """Static files that browsers cache but revalidate each time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The response with one file. Raises HTTPException."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def open_paths() -> frozenset[str]:
    """The paths of the page's files and of the page of /docs, which need no API key."""
    files = {f"{PAGE_PATH}/{name}" for name in names(PAGE)} | {f"{API_DOCS_PATH}/{name}" for name in names(API_DOCS)}
    return frozenset({"/docs", *files})


@router.get("/", response_model=dict[str, str])
async def about(request: Request, services: ServicesDep) -> Response:
    """Server information and links, nothing confidential. Browsers receive the web page instead."""
    if services.settings.ui and "text/html" in request.headers.get("accept", ""):
        return _page(PAGE / "index.html", content_security_policy(inline_hashes()))
    about: dict[str, Any] = {
        "name": "genai-server",
        "version": __version__,
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/healthz",
        "ready": "/readyz",
        "models": "/v1/models",
    }
    return JSONResponse(about, headers={"vary": "accept"} if services.settings.ui else None)


@router.get("/docs", include_in_schema=False)
async def api_docs() -> Response:
    """The API documentation for browsers."""
    return _page(API_DOCS / "index.html", content_security_policy())


def _page(path: Path, policy: str) -> Response:
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer", "vary": "accept"}
    return FileResponse(path, media_type="text/html", headers=headers)
