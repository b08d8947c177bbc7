"""A request that the server makes to its own app, which treats it like any other."""

import asyncio

from starlette.types import Message, Receive


def disconnect_at(event: asyncio.Event) -> Receive:
    """ASGI's `receive` of a client that disconnects when the event is set."""

    async def receive() -> Message:
        await event.wait()
        return {"type": "http.disconnect"}

    return receive


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
