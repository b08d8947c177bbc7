"""HTTP/1.1 from the client's side, one request for each connection, read strictly to its last byte.

Separate connections show what a pool would hide: an answer that is cut off, or bytes after its end.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11

from .server import HOST

JSON = {"content-type": "application/json"}
_CHUNK = 1 << 16


class BrokenAnswer(Exception):
    """The response is not one complete HTTP response; the message says why."""


@dataclass
class Response:
    """Status, headers with lower-case names, and the body up to now."""

    status: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)

    def json(self) -> Any:
        """The body. Raises ValueError if it is no JSON."""
        return json.loads(self.body)


def request(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a request after which the connection is closed."""
    named = {"host": HOST, "connection": "close", "content-length": str(len(body)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def exchange(
    port: int, data: bytes, *, is_whole: bool = True, receive_buffer: int | None = None, pause: float = 0.0
) -> Response:
    """Send the bytes of a request, which may be invalid HTTP, and return the complete answer; nothing follows a request
    that is not whole. The answer is read through a buffer of this size, with a pause of so many seconds after each
    piece.

    Raises OSError without a connection, and BrokenAnswer, also if the server does not close the connection in the end.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(sock, (HOST, port))
        # A server that refuses a request early may not read all of it.
        with suppress(ConnectionError):
            await loop.sock_sendall(sock, data)
            if not is_whole:
                sock.shutdown(socket.SHUT_WR)
        return await _answer(sock, receive_buffer or _CHUNK, pause)


async def _answer(sock: socket.socket, size: int, pause: float) -> Response:
    http = h11.Connection(h11.CLIENT)
    # h11 has to know of a request, but not what was sent.
    for sent in (h11.Request(method="POST", target="/", headers=[("host", HOST)]), h11.EndOfMessage()):
        http.send(sent)
    response = Response(0, {})
    try:
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await _read(sock, size))
            elif isinstance(event, h11.Response):
                headers = {name.decode(): value.decode(errors="replace") for name, value in event.headers}
                response = Response(event.status_code, headers)
            elif isinstance(event, h11.Data):
                response.body += event.data
                await asyncio.sleep(pause)
            elif isinstance(event, h11.ConnectionClosed):
                raise BrokenAnswer("the connection was closed without an answer")
    except h11.RemoteProtocolError as error:
        raise BrokenAnswer(str(error)) from None
    if rest := bytes(http.trailing_data[0]) + await _read(sock, size):
        raise BrokenAnswer(f"after the end of the answer came {rest[:100]!r}")
    return response


async def _read(sock: socket.socket, size: int) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(sock, size)
    except OSError as error:
        raise BrokenAnswer(f"the connection was lost: {error}") from None


async def ask(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Response:
    """One request and its complete answer. Raises BrokenAnswer and OSError."""
    return await exchange(port, request(method, path, body, headers))


async def ask_json(port: int, path: str, body: Any) -> Response:
    """POST an object."""
    return await ask(port, "POST", path, json.dumps(body).encode(), JSON)
