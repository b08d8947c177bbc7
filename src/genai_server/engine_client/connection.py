"""An API process's end of the socket to one engine."""

import asyncio
import sys
from collections.abc import Callable
from typing import cast

from genai_server.messages.frames import ToApi, api_decoder


class Connection(asyncio.Protocol):
    """Hands over each message as soon as it is complete; no task of its own wakes for it.

    `ended` is done when nothing more comes, with the error that ended it, if one did: one of the connection, or of
    `receive`, or msgspec.DecodeError if the other side is no engine.
    """

    def __init__(self, receive: Callable[[ToApi], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive = receive
        self._decoder = api_decoder()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except Exception as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def connect(address: str, receive: Callable[[ToApi], None]) -> tuple[asyncio.WriteTransport, Connection]:
    """Connect to a path, or to host:port. Raises OSError."""
    loop = asyncio.get_running_loop()
    if sys.platform != "win32" and "/" in address:
        transport, connection = await loop.create_unix_connection(lambda: Connection(receive), address)
    else:
        host, _, port = address.rpartition(":")
        transport, connection = await loop.create_connection(lambda: Connection(receive), host, int(port))
    return cast(asyncio.WriteTransport, transport), connection
