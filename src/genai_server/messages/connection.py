"""The end of a socket to another process of this server, in an event loop."""

import asyncio
import sys
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from genai_server.messages.protocol import FrameDecoder

M = TypeVar("M")


class MessageConnection(asyncio.Protocol, Generic[M]):
    """A connection to a process that sends frames. Each complete message is passed on at once, without waking a task.

    `ended` is done when no more data arrives. It raises the error that ended the connection: of the socket, of
    `receive`, or DecodeError.
    """

    def __init__(self, decoder: FrameDecoder[M], receive: Callable[[M], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive = receive
        self._decoder = decoder

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


async def connect(
    address: str, decoder: FrameDecoder[M], receive: Callable[[M], None]
) -> tuple[asyncio.WriteTransport, MessageConnection[M]]:
    """Connect to a Unix socket's path, or to host:port. Raises OSError."""
    loop = asyncio.get_running_loop()
    if sys.platform != "win32" and "/" in address:
        transport, connection = await loop.create_unix_connection(lambda: MessageConnection(decoder, receive), address)
    else:
        host, _, port = address.rpartition(":")
        transport, connection = await loop.create_connection(
            lambda: MessageConnection(decoder, receive), host, int(port)
        )
    return cast(asyncio.WriteTransport, transport), connection
