"""A socket connection to another process of the server, for asyncio."""

import asyncio
import sys
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from genai_server.messages.protocol import FrameDecoder

M = TypeVar("M")


class MessageConnection(asyncio.Protocol, Generic[M]):
    """Receives frames from another process and passes each complete message to `receive` at once, without waking a
    task.

    The future `ended` completes when the connection has ended. It raises the error that ended the connection: an error
    of the socket, an error that `receive` raised, or msgspec.DecodeError for data that is not a frame.
    """

    def __init__(self, decoder: FrameDecoder[M], receive: Callable[[M], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive = receive
        self._decoder = decoder

    def data_received(self, data: bytes) -> None:
        """Decode received data and pass on the messages that are complete. Called by asyncio."""
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except Exception as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Complete the future `ended`. Called by asyncio when the connection has been closed."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def connect(
    address: str, decoder: FrameDecoder[M], receive: Callable[[M], None]
) -> tuple[asyncio.WriteTransport, MessageConnection[M]]:
    """Connect to an address, which is the path of a Unix socket or host:port.

    Each received message is passed to `receive`. Raises OSError if the connection cannot be made.
    """
    loop = asyncio.get_running_loop()
    if sys.platform != "win32" and "/" in address:
        transport, connection = await loop.create_unix_connection(lambda: MessageConnection(decoder, receive), address)
    else:
        host, _, port = address.rpartition(":")
        transport, connection = await loop.create_connection(
            lambda: MessageConnection(decoder, receive), host, int(port)
        )
    return cast(asyncio.WriteTransport, transport), connection
