"""Answers HEAD wherever there is a GET. Plain ASGI."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """Routes answer HEAD as GET, and the body is left out. Plain ASGI.

    It is the innermost middleware: all others, such as the log's, still see a HEAD. The OpenAPI schema has each path's
    GET only.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self.app(asked, receive, send_head)
        finally:
            if "route" in asked:
                scope["route"] = asked["route"]
