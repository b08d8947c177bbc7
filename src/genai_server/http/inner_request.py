"""A request that the server makes to its own app, which treats it like any other."""

import asyncio

from starlette.types import Message


class InnerRequest:
    """The body of a request, and whether its client has disconnected."""

    def __init__(self, body: bytes, is_disconnected: asyncio.Event | None = None) -> None:
        self.is_disconnected = is_disconnected or asyncio.Event()
        self._body: bytes | None = body

    async def receive(self) -> Message:
        """ASGI's `receive`."""
        if self._body is None:
            await self.is_disconnected.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class InnerResponse:
    """The complete response to a request."""

    def __init__(self, status: int = 0, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b"") -> None:
        # 0 before the response has started.
        self.status = status
        self.headers = headers or []
        self.body = body

    async def send(self, message: Message) -> None:
        """ASGI's `send`."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
