"""Puts the API together; all state is passed in, so that two apps can live in one process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from prometheus_client import CollectorRegistry

from genai_server import __version__
from genai_server.api import (
    adapter_admin,
    admin,
    chat,
    chat_completions,
    completions,
    exposition,
    messages,
    model_admin,
    models,
    profiles,
    requests,
    responses,
    status,
    tokens,
)
from genai_server.api.account import Accounts, Observer
from genai_server.api.auth import OPEN_PATHS, Gate
from genai_server.api.body import BodyLimits
from genai_server.api.caller import ClientLeft
from genai_server.api.catalog import Catalog
from genai_server.api.drain import Drain, Drained
from genai_server.api.engine_metrics import EngineMetrics
from genai_server.api.errors import install_error_handlers
from genai_server.api.keys import ApiKeys
from genai_server.api.rate_limit import RateLimits
from genai_server.api.request_id import RequestId
from genai_server.api.response_store import ResponseStore
from genai_server.api.served_model import LoadText
from genai_server.api.services import Services
from genai_server.config import Settings
from genai_server.garbage import rare_full_collections
from genai_server.timing import Clock


class Engines(Protocol):
    """Gives the folder of running engines for as long as the app runs."""

    def __call__(self) -> AbstractAsyncContextManager[Path]: ...


@dataclass(frozen=True)
class Books:
    """Who is told of each request when it has ended, the registry of the metrics that are made of that, the clock, in
    seconds, that times it, and what is to be done at the end, which may block.
    """

    registry: CollectorRegistry
    observers: Sequence[Observer]
    clock: Clock = time.perf_counter
    close: Callable[[], None] = lambda: None


def create_app(
    settings: Settings,
    engines: Engines,
    load_text: LoadText,
    drain: Drain,
    keys: ApiKeys,
    books: Books,
    *,
    on_loopback: bool,
) -> FastAPI:
    """The ASGI app; its lifespan attaches to the engines.

    `load_text` reads the text side of a model. `drain` is begun from outside. `keys` open the app. `books` are kept of
    its requests. `on_loopback` says whether only this machine can reach the server, for all that is known.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        most_waiting = settings.max_queue + settings.max_batch_size
        async with (
            engines() as folder,
            Catalog(folder, load_text, most_waiting).followed() as models,
            rare_full_collections(),
        ):
            responses = ResponseStore(settings.response_store_size, settings.response_store_bytes)
            engine_metrics = EngineMetrics(settings, models)
            books.registry.register(engine_metrics)
            app.state.services = Services(settings, models, responses, books.clock, on_loopback, drain, books.registry)
            yield
            books.registry.unregister(engine_metrics)
            await asyncio.to_thread(books.close)

    app = FastAPI(title="genai-server", version=__version__, lifespan=lifespan)
    app.add_middleware(Drained, drain=drain)
    _add_doors(
        app,
        settings,
        keys,
        RateLimits(settings.max_concurrent_per_key, settings.rate_per_key, books.clock),
        on_loopback,
    )
    app.add_middleware(Accounts, model=next(iter(settings.served)), clock=books.clock, observers=books.observers)
    app.add_middleware(RequestId)
    install_error_handlers(app)
    for module in (
        chat,
        chat_completions,
        completions,
        responses,
        messages,
        models,
        tokens,
        admin,
        model_admin,
        adapter_admin,
        requests,
        profiles,
        status,
    ):
        app.include_router(module.router)
    if settings.metrics != "off":
        app.include_router(exposition.router)

    @app.exception_handler(ClientLeft)
    async def client_left(request: Request, error: ClientLeft) -> Response:
        request.state.error_code = "client_left"
        return Response(status_code=499)

    return app


def _add_doors(app: FastAPI, settings: Settings, keys: ApiKeys, limits: RateLimits, on_loopback: bool) -> None:
    """What a request passes before a route sees it; the last one here is the first."""
    app.add_middleware(BodyLimits, limit=settings.max_body_bytes, seconds=settings.body_timeout)
    app.add_middleware(
        Gate,
        keys=keys,
        limits=limits,
        admin_key=settings.admin_api_key,
        on_loopback=on_loopback,
        insecure=settings.insecure,
        open_paths=OPEN_PATHS | {exposition.PATH} if settings.metrics == "open" else OPEN_PATHS,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "server-timing"],
        )
