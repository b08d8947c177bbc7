"""Helpers for requests that the server sends to its own ASGI app in the same process, for example for a batch:
`InnerResponse` collects the response, and `disconnect_at` makes the client's side.
"""

import asyncio

from starlette.types import Message, Receive


def disconnect_at(event: asyncio.Event) -> Receive:
    """Return an ASGI `receive` function for a request whose body has been sent: it waits until `event` is set, and then
    reports that the client has disconnected.
    """

    async def receive() -> Message:
        await event.wait()
        return {"type": "http.disconnect"}

    return receive


class InnerResponse:
    """Collects the complete response to a request, status, headers and body, from what the ASGI app sends. The caller
    passes `send` to the app, and reads the response when the app has returned.
    """

    def __init__(self, status: int = 0, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b"") -> None:
        # 0 before the response has started.
        self.status = status
        self.headers = headers or []
        self.body = body

    async def send(self, message: Message) -> None:
        """Add a message of the app to the response. This is the ASGI `send` function for the app."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
