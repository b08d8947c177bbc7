"""Answers for HTTP/1.0 clients, which do not understand chunked coding; uvicorn would use it nevertheless."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Unchunked:
    """Ends an answer of unknown length, such as a stream of events, by closing the connection; plain ASGI.

    uvicorn's count of bytes still to come is set for each piece.
    """

    # The request cycle of the app's call; set before that.
    cycle: RequestResponseCycle

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_plainly(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = "content-length" in Headers(raw=message.get("headers", []))
                if not has_length:
                    self.cycle.chunked_encoding = False
            elif not has_length:
                self.cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_plainly)
