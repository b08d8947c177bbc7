"""Passes a program's requests on to a server, and keeps them in memory: their bodies, and what became of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import aiohttp
from _load.server import HOST, free_port
from aiohttp import web

# Headers that belong to one connection, or that the other side of the relay has of its own.
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade"})
_OF_ANSWER = _HOP | {"date", "server"}
# What generates an answer.
_PATHS = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
_LARGEST = 64 * 1024 * 1024
_PATIENCE = aiohttp.ClientTimeout(total=None, sock_read=300)


@dataclass(frozen=True)
class Recorded:
    """A request as the program sent it, and how it was answered."""

    path: str
    body: bytes
    status: int
    # The response's body, if it is an error.
    error: str


@dataclass
class Relay:
    """A running relay."""

    url: str
    # In the order in which their responses ended.
    requests: list[Recorded] = field(default_factory=list)

    def refused(self) -> str:
        """The first error of a refused request; "" if there is none."""
        return next((request.error[:300] for request in self.requests if request.status == 400), "")

    def asked(self, mark: str) -> list[tuple[str, dict[str, Any]]]:
        """The path and the body of each request for an answer that has this text. Raises ValueError if one is no
        object.
        """
        bodies = [
            (request.path, json.loads(request.body))
            for request in self.requests
            if request.path in _PATHS and mark.encode() in request.body
        ]
        if any(not isinstance(body, dict) for _, body in bodies):
            raise ValueError("a request has a body that is no object")
        return bodies


@contextmanager
def relay(target: str) -> Iterator[Relay]:
    """Run a relay to the server at `target` until the context ends."""
    port = free_port()
    running = Relay(f"http://{HOST}:{port}")
    loop, begun = asyncio.new_event_loop(), Event()

    async def serve() -> None:
        async with aiohttp.ClientSession(target, timeout=_PATIENCE, auto_decompress=False) as session:

            async def pass_on(request: web.Request) -> web.StreamResponse:
                return await _passed_on(request, session, running)

            application = web.Application(client_max_size=_LARGEST)
            application.router.add_route("*", "/{path:.*}", pass_on)
            runner = web.AppRunner(application)
            await runner.setup()
            await web.TCPSite(runner, HOST, port).start()
            begun.set()
            try:
                await ended.wait()
            finally:
                await runner.cleanup()

    ended = asyncio.Event()
    thread = Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    begun.wait()
    try:
        yield running
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


async def _passed_on(request: web.Request, session: aiohttp.ClientSession, relay: Relay) -> web.StreamResponse:
    """Send the server's response to a request as it comes."""
    body = await request.read()
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
    error = b""
    async with session.request(request.method, request.rel_url, data=body or None, headers=headers) as answer:
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_ANSWER}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
            error += piece if answer.status >= 400 else b""
        await response.write_eof()
    relay.requests.append(Recorded(request.path, body, answer.status, error.decode(errors="replace")))
    return response
