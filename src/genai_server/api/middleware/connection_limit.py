"""Refuses requests on connections beyond the limit of open files. Plain ASGI."""

from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.errors import error_response
from genai_server.errors import TooManyConnections

# Where the HTTP server leaves the limit of open files in the scope's state, if the connection is beyond it.
SURPLUS = "surplus_connection"


class ConnectionLimit:
    """Answers 503 on a surplus connection, except at `open_paths`, such as health checks, and closes it."""

    def __init__(self, app: ASGIApp, open_paths: Collection[str]) -> None:
        self.app = app
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most_files = scope.get("state", {}).get(SURPLUS)
        if most_files is None:
            await self.app(scope, receive, send)
            return

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        if scope["path"] in self._open_paths:
            await self.app(scope, receive, send_last)
            return
        error = TooManyConnections(
            f"as many connections are open as the server's limit of open files ({most_files}) allows; try again"
        )
        await error_response(error, scope)(scope, receive, send_last)
