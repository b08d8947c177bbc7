"""Refuses malformed request heads before anything else reads them. Plain ASGI."""

from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from genai_server.api.errors import error_response
from genai_server.errors import MalformedHead
from genai_server.quoted_values import quoted

_MOST_SHOWN = 100


class RequestHead:
    """Refuses heads that two readers could read differently: several hosts, and paths that are not UTF-8.

    A check of the first host would let in a request that is meant for the second one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := _wrong_with(scope)) is not None:
            await error_response(error, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _wrong_with(scope: Scope) -> MalformedHead | None:
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1:
        given = ", ".join(repr(host[:_MOST_SHOWN]) for host in hosts[:3])
        return MalformedHead(f"a request has one Host header, given {len(hosts)}: {given}", param="Host")
    for name, value in (("path", scope.get("raw_path") or b""), ("query", scope["query_string"])):
        try:
            unquote_to_bytes(value).decode()
        except UnicodeDecodeError as error:
            wrong = error.object[error.start : error.end].hex().upper()
            return MalformedHead(
                f"the {name} must be UTF-8 once its %-escapes are bytes, given byte {wrong} "
                f"in {quoted(value[:_MOST_SHOWN].decode('latin-1'))}"
            )
    return None
