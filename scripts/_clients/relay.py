"""Passes a program's requests on to a server, and keeps them in memory: their bodies, and what became of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import httpx
import uvicorn
from _load.server import HOST, free_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

# Headers that belong to one connection, or that the other side of the relay has of its own.
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade"})
_OF_ANSWER = _HOP | {"date", "server"}
# What generates an answer.
_PATHS = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass
class Relay:
    """A running relay, and its requests in the order in which their responses ended."""

    url: str
    # Paths and bodies, as the program sent them.
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    # The bodies of responses that refuse a request.
    refusals: list[str] = field(default_factory=list)

    def asked(self, mark: str) -> list[tuple[str, dict[str, Any]]]:
        """The path and the body of each request for an answer that has this text. Raises ValueError if one is no
        object.
        """
        bodies = [(path, json.loads(body)) for path, body in self.requests if path in _PATHS and mark.encode() in body]
        if any(not isinstance(body, dict) for _, body in bodies):
            raise ValueError("a request has a body that is no object")
        return bodies


@contextmanager
def relay(target: str) -> Iterator[Relay]:
    """Run a relay to the server at `target` until the context ends."""
    port = free_port()
    running = Relay(f"http://{HOST}:{port}")
    client = httpx.AsyncClient(timeout=300)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    async def pass_on(request: Request) -> StreamingResponse:
        """Send the server's response to a request as it comes."""
        body = await request.body()
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        url = f"{target}{request.scope['raw_path'].decode()}?{request.url.query}"
        asked = client.build_request(request.method, url, content=body, headers=headers)
        answer = await client.send(asked, stream=True)

        async def pieces() -> AsyncIterator[bytes]:
            said = b""
            try:
                async for piece in answer.aiter_raw():
                    said += piece if answer.status_code == 400 else b""
                    yield piece
            finally:  # also when the program leaves before the last byte
                running.requests.append((request.url.path, body))
                if answer.status_code == 400:
                    running.refusals.append(said.decode(errors="replace"))
                await answer.aclose()

        kept = {name: value for name, value in answer.headers.items() if name not in _OF_ANSWER}
        return StreamingResponse(pieces(), answer.status_code, kept)

    application = Starlette(routes=[Route("/{path:path}", pass_on, methods=_METHODS)], lifespan=lifespan)
    config = uvicorn.Config(application, host=HOST, port=port, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.05)
        yield running
    finally:
        server.should_exit = True
        thread.join()
