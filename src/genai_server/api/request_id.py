"""What every response has: the name of its request, and headers that bind browsers. Plain ASGI."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.errors import FOR_BROWSERS, request_id_headers

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestId:
    """Puts `X-Request-ID` on every response: the client's own, if it is a plain short name, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _PLAIN_NAME.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(FOR_BROWSERS | request_id_headers(scope))
            await send(message)

        await self.app(scope, receive, send_named)
