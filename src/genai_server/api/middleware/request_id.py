"""Headers of every response: the request's id, and rules for browsers. Plain ASGI."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.errors import FOR_BROWSERS, request_id_headers

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestId:
    """Puts `X-Request-ID` on every response: the client's own id if it is a short plain name, or a new one.

    The scope's state has this id, and a unique id beside it: several requests may have the same id from their clients.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        unique_id = f"req-{secrets.token_hex(12)}"
        request_id = given if _PLAIN_NAME.fullmatch(given) else unique_id
        scope.setdefault("state", {}).update(request_id=request_id, unique_id=unique_id)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in FOR_BROWSERS.items():
                    headers.setdefault(name, value)
                headers.update(request_id_headers(scope))
            await send(message)

        await self.app(scope, receive, send_named)
