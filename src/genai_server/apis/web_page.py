"""The root path, which is the web page for browsers and server information for programs, and /docs, the page with the
API documentation.

The files of both pages contain no secrets and need no API key. The web page asks the user for the key, and the
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
    """Serves the static files of the web pages. Browsers may cache them, but must ask the server each time whether they
    have changed.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the response with the file at `path`, relative to the folder that is served. Raises HTTPException if
        there is no such file.
        """
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def open_paths() -> frozenset[str]:
    """Return the URL paths of the files of the web page and of the documentation page, which need no API key."""
    files = {f"{PAGE_PATH}/{name}" for name in names(PAGE)} | {f"{API_DOCS_PATH}/{name}" for name in names(API_DOCS)}
    return frozenset({"/docs", *files})


@router.get("/", response_model=dict[str, str])
async def about(request: Request, services: ServicesDep) -> Response:
    """Get the server's name and version and links to its main endpoints; nothing confidential. Browsers receive the web
    page instead, unless it is switched off.
    """
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
    """Get the page with the API documentation, which shows /openapi.json in a browser."""
    return _page(API_DOCS / "index.html", content_security_policy())


def _page(path: Path, policy: str) -> Response:
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer", "vary": "accept"}
    return FileResponse(path, media_type="text/html", headers=headers)
