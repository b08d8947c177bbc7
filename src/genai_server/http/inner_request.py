"""Helpers for requests that the server sends to its own ASGI app, in the same process."""

import asyncio

from starlette.types import Message, Receive


def disconnect_at(event: asyncio.Event) -> Receive:
    """An ASGI `receive` function of a client that sends nothing more and disconnects when `event` is set."""

    async def receive() -> Message:
        await event.wait()
        return {"type": "http.disconnect"}

    return receive


class InnerResponse:
    """Collects the complete response to a request, from what the ASGI app sends."""

    def __init__(self, status: int = 0, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b"") -> None:
        # 0 before the response has started.
        self.status = status
        self.headers = headers or []
        self.body = body

    async def send(self, message: Message) -> None:
        """The ASGI `send` function for the app."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
