"""Puts the API together; all state is passed in, so that two apps can live in one process."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response

from genai_server import __version__
from genai_server.api import (
    admin,
    chat,
    chat_completions,
    completions,
    messages,
    models,
    profiles,
    responses,
    status,
    tokens,
)
from genai_server.api.choices import ClientLeft
from genai_server.api.errors import install_error_handlers
from genai_server.api.middleware import BodyLimit, RequestId
from genai_server.api.response_store import ResponseStore
from genai_server.api.services import Services
from genai_server.config import Settings
from genai_server.engines.router import Router
from genai_server.text.codec import TextCodec
from genai_server.timing import Clock


class Engines(Protocol):
    """Gives the folder of running engines for as long as the app runs."""

    def __call__(self) -> AbstractAsyncContextManager[Path]: ...


def create_app(
    settings: Settings,
    engines: Engines,
    codecs: Mapping[str, TextCodec],
    *,
    on_loopback: bool,
    clock: Clock = time.perf_counter,
) -> FastAPI:
    """The ASGI app; its lifespan attaches to the engines.

    `codecs` has the text side of each device's model; the app closes them. `on_loopback` says whether only this machine
    can reach the server, for all that is known. `clock` gives seconds.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engines() as folder, Router(settings.devices, folder).attached() as router:
            responses = ResponseStore(settings.response_store_size, settings.response_store_bytes)
            started = int(time.time())
            app.state.services = Services(settings, router, codecs, responses, clock, started, on_loopback)
            yield
        for codec in codecs.values():
            codec.close()

    app = FastAPI(title="genai-server", version=__version__, lifespan=lifespan)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(RequestId)
    install_error_handlers(app)
    for module in (chat, chat_completions, completions, responses, messages, models, tokens, admin, profiles, status):
        app.include_router(module.router)

    @app.exception_handler(ClientLeft)
    async def client_left(request: Request, error: ClientLeft) -> Response:
        return Response(status_code=499)

    return app
