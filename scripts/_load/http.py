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


class Exchange:
    """One request and its answer."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._port = port
        self._receive_buffer = receive_buffer
        self._http = h11.Connection(h11.CLIENT)
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Exchange:
        sock = socket.socket()
        sock.setblocking(False)
        if self._receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (HOST, self._port))
            self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=self._receive_buffer or _CHUNK)
        except BaseException:
            sock.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        self._writer.transport.abort()

    async def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """The complete request."""
        assert self._writer is not None
        named = {"host": HOST, "connection": "close", "content-length": str(len(body)), **(headers or {})}
        request = h11.Request(method=method, target=path, headers=list(named.items()))
        parts = (self._http.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage()))
        self._writer.write(b"".join(part or b"" for part in parts))
        await self._writer.drain()

    async def send_raw(self, data: bytes, *, is_whole: bool) -> None:
        """A POST in bytes that may be invalid HTTP; nothing follows an incomplete one. A server that refuses it early
        may not read all of it.
        """
        assert self._writer is not None
        request = h11.Request(method="POST", target="/", headers=[("host", HOST), ("content-length", "0")])
        for event in (request, h11.EndOfMessage()):
            self._http.send(event)
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()
            if not is_whole:
                self._writer.write_eof()

    async def response(self) -> Response:
        """The answer's head. Raises BrokenAnswer."""
        while isinstance(event := await self._next(), h11.InformationalResponse):
            pass
        assert isinstance(event, h11.Response)
        headers = {name.decode(): value.decode(errors="replace") for name, value in event.headers}
        return Response(event.status_code, headers)

    async def complete(self, *, pause: float = 0.0) -> Response:
        """The complete answer, read with a pause of so many seconds after each piece of its body. Raises BrokenAnswer,
        also if the server does not close the connection then.
        """
        response = await self.response()
        while isinstance(event := await self._next(), h11.Data):
            response.body += event.data
            if pause:
                await asyncio.sleep(pause)
        rest, _ = self._http.trailing_data
        if rest := bytes(rest) + await self._read():
            raise BrokenAnswer(f"after the end of the answer came {rest[:100]!r}")
        return response

    async def _next(self) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._read())
        except h11.RemoteProtocolError as error:
            raise BrokenAnswer(str(error)) from None
        if isinstance(event, h11.ConnectionClosed):
            raise BrokenAnswer("the connection was closed without an answer")
        return event

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK)
        except OSError as error:
            raise BrokenAnswer(f"the connection was lost: {error}") from None


async def ask(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Response:
    """One request and its complete answer. Raises BrokenAnswer and OSError."""
    async with Exchange(port) as exchange:
        await exchange.send(method, path, body, headers)
        return await exchange.complete()


async def ask_json(port: int, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    """POST an object."""
    return await ask(
        port, "POST", path, json.dumps(body).encode(), {"content-type": "application/json"} | dict(headers or {})
    )
