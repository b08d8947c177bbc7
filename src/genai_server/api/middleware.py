"""What happens to every request before a route sees it: its name, and the limit of its body. Plain ASGI."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.errors import error_response, request_id_headers
from genai_server.errors import BodyTooLarge

# A body over the limit is read on, and dropped, up to so many times the limit: a client that is still sending when the
# connection is closed may never see the answer.
_DRAINED = 8
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
                MutableHeaders(scope=message).update(request_id_headers(scope))
            await send(message)

        await self.app(scope, receive, send_named)


class BodyLimit:
    """Reads the body first, at most `limit` bytes; what is longer is refused before any work is done."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = bytearray()
        size = 0
        more = True
        while more and size <= self.limit * _DRAINED:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            part: bytes = message.get("body", b"")
            size += len(part)
            more = message.get("more_body", False)
            if size <= self.limit:
                body += part
        if size > self.limit:
            await self._refuse(size, more, scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, size: int, more: bool, scope: Scope, receive: Receive, send: Send) -> None:
        given = f"more than {size}" if more else str(size)
        response = error_response(
            BodyTooLarge(f"the body may have at most {self.limit} bytes (GENAI_MAX_BODY_BYTES), given {given}"), scope
        )
        if more:
            response.headers["connection"] = "close"
        await response(scope, receive, send)
