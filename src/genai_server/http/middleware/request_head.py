"""Refuses requests by their heads alone, before anything else reads them. Plain ASGI."""

from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from genai_server.errors import GenaiServerError, MalformedHead, TooManyConnections
from genai_server.http.error_responses import error_response
from genai_server.http.middleware.authentication import OPEN_PATHS
from genai_server.http.request_state import request_state
from genai_server.quoted_values import quoted

_MAX_SHOWN = 100


class RequestHead:
    """Refuses requests on connections beyond the limit of open files, except at OPEN_PATHS, such as health checks.

    Refuses heads, too, that two readers could read differently: several hosts, and paths that are not UTF-8. A check of
    the first host would let in a request that is meant for the second one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := _surplus(scope) or _malformed(scope)) is not None:
            await error_response(error, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _surplus(scope: Scope) -> GenaiServerError | None:
    max_files = request_state(scope).receipt.max_files
    if max_files is None or scope["path"] in OPEN_PATHS:
        return None
    return TooManyConnections(
        f"as many connections are open as the server's limit of open files ({max_files}) allows; try again"
    )


def _malformed(scope: Scope) -> GenaiServerError | None:
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1:
        given = ", ".join(repr(host[:_MAX_SHOWN]) for host in hosts[:3])
        return MalformedHead(f"a request has one Host header, given {len(hosts)}: {given}", param="Host")
    for name, value in (("path", scope.get("raw_path") or b""), ("query", scope["query_string"])):
        try:
            unquote_to_bytes(value).decode()
        except UnicodeDecodeError as error:
            wrong = error.object[error.start : error.end].hex().upper()
            return MalformedHead(
                f"the {name} must be UTF-8 once its %-escapes are bytes, given byte {wrong} "
                f"in {quoted(value[:_MAX_SHOWN].decode('latin-1'))}"
            )
    return None
