"""Redirects requests whose path lacks a slash at its end, or has one too many (`TrailingSlash`).

Starlette's own redirects contain a scheme, a host and the path as this server sees it. Behind a proxy that ends TLS or
removes a prefix these are wrong. So the redirects here are relative to the address that the client has used.
"""

from urllib.parse import quote

from starlette.responses import RedirectResponse
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send


class TrailingSlash:
    """An ASGI app that handles the requests for which `router` has no route. It redirects a request if there is a route
    for its path with, or without, a slash at its end, and passes all others to the ASGI app `not_found`.
    """

    def __init__(self, router: Router, not_found: ASGIApp) -> None:
        self._router = router
        self._not_found = not_found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["type"] == "http" and path.strip("/"):
            other = path.removesuffix("/") if path.endswith("/") else f"{path}/"
            if any(route.matches({**scope, "path": other})[0] is not Match.NONE for route in self._router.routes):
                await RedirectResponse(_relative(path, other, scope["query_string"]))(scope, receive, send)
                return
        await self._not_found(scope, receive, send)


def _relative(path: str, other: str, query: bytes) -> str:
    """Return the relative URL that leads from the path `path` to the path `other`, which differs by a slash at its end.
    `query` is the query of the request, which the URL keeps.
    """
    if path.endswith("/"):
        reference = f"../{quote(other.rpartition('/')[2])}"
    else:
        reference = f"./{quote(path.rpartition('/')[2])}/"  # "./", because a name may have a colon
    return f"{reference}?{query.decode('latin-1')}" if query else reference
