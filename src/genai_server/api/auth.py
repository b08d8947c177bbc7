"""Who may use the admin endpoints."""

import hmac
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from genai_server.api.services import Services, services
from genai_server.config import is_loopback
from genai_server.errors import AdminForbidden

_FORWARDING_HEADERS = {"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
_REMEDY = "set GENAI_ADMIN_API_KEY and send it as a bearer token"


async def require_admin(request: Request, services: Annotated[Services, Depends(services)]) -> None:
    """Let the holder of the admin key in, or, where none is set, a program on this machine.

    Without a key the server must be bound to loopback, and nothing may hint at a proxy or at a web page, whose requests
    would come from this machine, too. Raises AdminForbidden.
    """
    key = services.settings.admin_api_key
    if key is not None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), key.encode()):
            raise AdminForbidden("the admin endpoints need GENAI_ADMIN_API_KEY as a bearer token")
        return
    reason = _not_local(request, services)
    if reason is not None:
        raise AdminForbidden(f"without an admin key this endpoint serves local programs only, but {reason}; {_REMEDY}")


def _not_local(request: Request, services: Services) -> str | None:
    """What speaks against a local program, or None."""
    client = request.client.host if request.client else ""
    if not services.on_loopback or not is_loopback(client):
        return "the server is not known to be bound to loopback alone"
    for name in request.headers:
        if name in _FORWARDING_HEADERS or name.startswith("x-forwarded"):
            return f"the request was forwarded ({name})"
    host = request.headers.get("host", "")
    if not is_loopback(_host_name(f"//{host}")):
        return "the Host header names another machine"
    origin = request.headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "the Origin header names a web page"
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    if request.method == "POST" and not is_json:
        return "the body is not application/json"
    return None


def _host_name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
