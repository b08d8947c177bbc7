"""Tells clients that have only ended their sending side from those that have left."""

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# Seconds between two looks at a connection.
_LOOK_EVERY = 0.05
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClosed:
    """Watches a connection whose client has ended its sending side, and ends it once the client has left.

    The system reports both in the same way. Only bytes that arrive tell them apart: the system of a client that has
    left answers them with a reset.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, running: RequestResponseCycle) -> None:
        """Send bytes that change nothing for a client that waits for this answer, and wait for a reset."""
        if not running.response_started:
            self._transport.write(_CONTINUE)  # an interim response, which HTTP/1.1 allows at any number
        elif running.chunked_encoding:
            self._transport.write(b"0")  # a leading zero of the next chunk's size
        self._look()

    def stop(self) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look)
