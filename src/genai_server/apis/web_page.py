"""The root path, which is the web page for browsers and server information for programs, and the API documentation.

The files of the web page contain no secrets and need no API key. The page asks the user for the key, and the
documentation page uses the same key to read /openapi.json.
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
from genai_server.profiles.report_formats import inline_hashes
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
    """Static files that browsers cache but check for changes each time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The response with one file. Raises HTTPException if there is no such file."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def open_paths() -> frozenset[str]:
    """The paths of the web page's files and of the documentation page, which need no API key."""
    files = {f"{PAGE_PATH}/{name}" for name in names(PAGE)} | {f"{API_DOCS_PATH}/{name}" for name in names(API_DOCS)}
    return frozenset({"/docs", *files})


@router.get("/", response_model=dict[str, str])
async def about(request: Request, services: ServicesDep) -> Response:
    """Get server information and links; nothing confidential. Browsers receive the web page instead."""
    if services.settings.ui and "text/html" in request.headers.get("accept", ""):
        return _page(PAGE / "index.html", content_security_policy(inline_hashes()))
    information: dict[str, Any] = {
        "name": "genai-server",
        "version": __version__,
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/healthz",
        "ready": "/readyz",
        "models": "/v1/models",
    }
    return JSONResponse(information, headers={"vary": "accept"} if services.settings.ui else None)


@router.get("/docs", include_in_schema=False)
async def api_docs() -> Response:
    """The API documentation as a web page."""
    return _page(API_DOCS / "index.html", content_security_policy())


def _page(path: Path, policy: str) -> Response:
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer", "vary": "accept"}
    return FileResponse(path, media_type="text/html", headers=headers)
