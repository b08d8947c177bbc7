"""Builds the ASGI app of an API process, with the routes of all APIs, the middlewares, and what runs in the background
while the app runs. The entry point is `create_app`. All state is passed in, so that two apps can live in one process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from starlette.routing import WebSocketRoute

from genai_server import __version__
from genai_server.apis import (
    chat_completions,
    completions,
    decisions,
    embeddings,
    files,
    health,
    metrics,
    models,
    scoring,
    tokens,
)
from genai_server.apis import own_chat as chat
from genai_server.apis import tool_servers as tool_server_list
from genai_server.apis import web_page as page
from genai_server.apis.admin import engines as engine_admin
from genai_server.apis.admin import models as model_admin
from genai_server.apis.admin import profile_sessions as profiles
from genai_server.apis.admin import requests, vllm_calls
from genai_server.apis.admin.engines import cancel_request
from genai_server.apis.batches import routes as batch_routes
from genai_server.apis.batches.running import files_and_batches
from genai_server.apis.messages import routes as messages
from genai_server.apis.messages.errors import ANTHROPIC
from genai_server.apis.metrics import EngineMetrics, Instruments, LoadHistory
from genai_server.apis.ollama import routes as ollama
from genai_server.apis.ollama.translate import OLLAMA
from genai_server.apis.openapi import documented
from genai_server.apis.responses import conversation_routes as conversations
from genai_server.apis.responses import routes as responses
from genai_server.apis.responses.store import EndRequest, ResponseStore
from genai_server.apis.responses.websocket import ResponsesSocket
from genai_server.apis.transcriptions import routes as transcriptions
from genai_server.config.settings import Settings
from genai_server.config.tool_servers import tool_servers
from genai_server.engine_client.supervisor import FindSupervisor, SupervisorClient
from genai_server.generation.catalog import Catalog, LoadText, ModelStore, fingerprint
from genai_server.generation.dependencies import ClientLeft, Services
from genai_server.generation.output_spec import CheckedSpecs
from genai_server.grammar_checker.checker import GrammarChecker
from genai_server.http.api_keys import ApiKeys
from genai_server.http.body_budget import BODY_BUDGET, BodyBudget
from genai_server.http.error_handlers import install_error_handlers
from genai_server.http.middleware.authentication import Authentication
from genai_server.http.middleware.body import BodyLimits, UploadLimits, Uploads, upload_folder
from genai_server.http.middleware.request_lifetime import OPEN_PATHS, Drain, DrainMiddleware, RequestLifetime
from genai_server.http.rate_limit import RateLimits
from genai_server.http.request_state import request_state
from genai_server.http.telemetry.key_usage import FILE_NAME, KeyUsage
from genai_server.http.telemetry.recent_requests import RecentRequests
from genai_server.http.telemetry.request_record import Observer
from genai_server.http.trailing_slash import TrailingSlash
from genai_server.logs import written_in_thread
from genai_server.media.audio.recordings import Recordings
from genai_server.media.images.reader import Images
from genai_server.model_files.speech_and_vision import any_takes_media
from genai_server.store.database import Database, open_store
from genai_server.system.resources import rare_full_collections
from genai_server.timing import Clock, request_clock
from genai_server.tool_servers.client import Tools
from genai_server.web.files import API_DOCS, PAGE

DIALECTS = (ANTHROPIC, OLLAMA)


@dataclass(frozen=True)
class Attachment:
    """How the app of an API process reaches the engines of its server: a function that finds the supervisor (the
    process that starts engines and restarts them), the folder for files that the server's processes share, and a
    function to call if no device could load its model. Whoever starts the app provides it, through the argument
    `engines` of `create_app`.
    """

    folder: Path
    find: FindSupervisor
    # Called if no device could load its model.
    on_nothing_loaded: Callable[[], None] = lambda: None


# A context manager that lasts as long as the app, and yields what the app needs in order to use the engines.
Engines = Callable[[], AbstractAsyncContextManager[Attachment]]


@dataclass(frozen=True)
class ModelFiles:
    """How the app of an API process reads the files of models: a function that loads a model's tokenizer and chat
    template, and the store that lists the models on disk and downloads others. An argument of `create_app`.
    """

    # Reads the tokenizer and the chat template of a model.
    load_text: LoadText
    # Models on disk and on a hub.
    store: ModelStore


@dataclass(frozen=True)
class Telemetry:
    """What the app of an API process reports about its work, and to whom: the Prometheus registry and counters, the
    observers that receive the record of each request that has ended, and the clock that times requests. An argument of
    `create_app`.
    """

    # Holds the metrics.
    registry: CollectorRegistry
    # Receive each request when it has ended.
    observers: Sequence[Observer]
    # Times requests, in seconds.
    clock: Clock = request_clock
    # Counts checks of grammars, images, recordings and batches.
    instruments: Instruments = field(default_factory=lambda: Instruments(CollectorRegistry(), ""))
    # Called when the app ends; may block.
    close: Callable[[], None] = lambda: None


def create_app(
    settings: Settings,
    engines: Engines,
    model_files: ModelFiles,
    drain: Drain,
    keys: ApiKeys,
    telemetry: Telemetry,
    *,
    on_loopback: bool,
) -> FastAPI:
    """Build the ASGI app of an API process. It connects to the engines when its lifespan begins, and disconnects when
    its lifespan ends.

    `engines` returns a context manager that says how to reach the engines. `drain` says when the server is about to
    stop and refuses new requests; the caller runs it. `keys` are the API keys that the app accepts. `on_loopback` says
    whether the server is known to be reachable from this machine only.
    """

    bodies = BodyBudget(settings.max_bodies_bytes)
    tools = tool_servers(settings)
    recent, usage = RecentRequests(), KeyUsage()
    telemetry = replace(telemetry, observers=[*telemetry.observers, recent.observe, usage.observe])
    counts = telemetry.instruments

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, BodyBudget]]:
        max_waiting = settings.max_queue + settings.max_batch_size
        async with (
            engines() as attachment,
            _attached(attachment) as supervisor,
            Catalog(
                supervisor, model_files.load_text, partial(fingerprint, settings), max_waiting
            ).followed() as models,
            rare_full_collections(),
        ):
            folder = attachment.folder
            files_dir = Path(settings.files_dir) if settings.files_dir else None
            # Without a setting, the store is in the folder that the server removes when it ends.
            path = settings.store_file or folder / "store.sqlite"
            database = open_store(path, settings.response_store_bytes, files_dir)
            responses = _response_store(
                settings,
                database,
                str(folder),
                lambda request: cancel_request(models.engines(), supervisor.tools, request),
            )
            metrics = EngineMetrics(settings, models)
            telemetry.registry.register(metrics)
            recent.open(folder)
            usage.open(Path(settings.usage_file) if settings.usage_file else folder / FILE_NAME)
            history = LoadHistory(metrics, recent)
            with (
                written_in_thread(),
                closing(Images(supervisor.workers, settings, folder, counts.count_image)) as images,
                closing(Recordings(supervisor.workers, settings, folder, counts.count_recording)) as recordings,
                upload_folder(folder) as app.state.uploads,
                closing(recent),
            ):
                grammars = GrammarChecker(supervisor.workers, settings.grammar_timeout, counts.count_check)
                app.state.responses = responses
                app.state.history = history
                app.state.services = Services(
                    settings,
                    models,
                    grammars,
                    images,
                    recordings,
                    CheckedSpecs(grammars, best_effort=not settings.strict),
                    telemetry.clock,
                    drain,
                    telemetry.registry,
                    model_files.store,
                    recent,
                    usage,
                    Tools(tools, supervisor.tools),
                )
                tasks = [
                    asyncio.create_task(_start_image_readers(models, images)),
                    asyncio.create_task(history.follow()),
                    asyncio.create_task(usage.follow()),
                ]
                try:
                    async with files_and_batches(
                        app, app.state.services, database, max_body, counts.count_batch, counts.count_batch_request
                    ) as batches:
                        app.state.batches = batches
                        app.state.files = None if batches is None else batches.files
                        yield {BODY_BUDGET: bodies}
                finally:
                    for task in tasks:
                        task.cancel()
                    await responses.close()
                    await database.close()
                    await usage.close()
            telemetry.registry.unregister(metrics)
            await asyncio.to_thread(telemetry.close)

    def max_body() -> int:
        return max(settings.max_body_bytes, _media_limit(app, settings))

    # FastAPI's own pages load their scripts from other hosts.
    app = FastAPI(
        title="genai-server",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        routes=[WebSocketRoute("/{path:path}", ResponsesSocket(settings.origins))],
    )
    _add_middleware(app, settings, bodies, drain, keys, telemetry, on_loopback=on_loopback)
    install_error_handlers(app)
    for module in (
        chat,
        chat_completions,
        completions,
        decisions,
        embeddings,
        responses,
        conversations,
        scoring,
        messages,
        ollama,
        models,
        tokens,
        tool_server_list,
        transcriptions,
        files,
        batch_routes,
        engine_admin,
        model_admin,
        vllm_calls,
        requests,
        profiles,
        health,
        page,
    ):
        app.include_router(module.router)
    app.include_router(embeddings.rerank_router)
    app.include_router(requests.readers_router)
    app.include_router(vllm_calls.adapter_router)
    app.include_router(ollama.embed_router)
    app.include_router(ollama.unsupported)
    app.include_router(ollama.models_router)
    app.include_router(ollama.pull_router)
    app.include_router(models.lm_studio_router)
    app.include_router(model_admin.stored_router)
    app.mount(page.API_DOCS_PATH, page.WebFiles(directory=API_DOCS))
    if settings.ui:
        app.mount(page.PAGE_PATH, page.WebFiles(directory=PAGE))
    if settings.metrics != "off":
        app.include_router(metrics.router)

    app.router.default = TrailingSlash(app.router, app.router.default)

    app.openapi = documented(app)  # type: ignore[method-assign]

    @app.exception_handler(ClientLeft)
    async def client_left(request: Request, error: ClientLeft) -> Response:
        request_state(request.scope).record.error_code = "client_left"
        return Response(status_code=499)

    return app


async def _start_image_readers(models: Catalog, images: Images) -> None:
    """Whenever a model that takes images has been loaded, start a worker process that prepares images for it. Runs
    until its task is cancelled.
    """
    async for served in models.loads():
        if (vision := served.codec.vision) is not None:
            await images.start(vision)


@asynccontextmanager
async def _attached(attachment: Attachment) -> AsyncIterator[SupervisorClient]:
    """Connect to the supervisor, the process that starts engines, while the block runs, and yield the connection.

    Meanwhile, `attachment.on_nothing_loaded` is called if no device could load its model.
    """

    async def follow() -> None:
        while not supervisor.status.no_model_loaded:
            await supervisor.changed()
        attachment.on_nothing_loaded()

    with closing(SupervisorClient(attachment.find)) as supervisor:
        following = asyncio.create_task(follow())
        try:
            yield supervisor
        finally:
            following.cancel()


def _response_store(settings: Settings, database: Database, run: str, end_request: EndRequest) -> ResponseStore:
    return ResponseStore(
        database,
        settings.response_store_size,
        settings.response_store_bytes,
        max_body_bytes=settings.max_body_bytes,
        max_media_body_bytes=settings.max_media_body_bytes if any_takes_media(settings.served.values()) else 0,
        run=run,
        end_request=end_request,
    )


def _add_middleware(
    app: FastAPI,
    settings: Settings,
    bodies: BodyBudget,
    drain: Drain,
    keys: ApiKeys,
    telemetry: Telemetry,
    *,
    on_loopback: bool,
) -> None:
    """Add the middlewares to the app, which each request passes through before it reaches its route: request lifetime
    and records, CORS, authentication and rate limits, limits for bodies, and the refusal of requests while the server
    stops.

    Requests reach the middleware that is added last first. `bodies` limits the memory of all request bodies together.
    `on_loopback` says whether the server is known to be reachable from this machine only.
    """
    seconds = settings.body_timeout, settings.upload_timeout
    app.add_middleware(DrainMiddleware, drain=drain)
    app.add_middleware(
        BodyLimits,
        limit=settings.max_body_bytes,
        seconds=settings.body_timeout,
        bodies=bodies,
        media_limit=lambda: _media_limit(app, settings),
        others=[
            Uploads(
                transcriptions.UPLOAD_PATHS,
                settings.origins,
                UploadLimits(settings.max_audio_body_bytes, "GENAI_MAX_AUDIO_BODY_BYTES", *seconds),
                BodyBudget(settings.max_audio_bodies_bytes, "GENAI_MAX_AUDIO_BODIES_BYTES"),
                lambda: Path(app.state.uploads),
            ),
            Uploads(
                files.UPLOAD_PATHS,
                settings.origins,
                UploadLimits(settings.max_file_bytes, "GENAI_MAX_FILE_BYTES", *seconds),
                BodyBudget(settings.files_bytes, "GENAI_FILES_BYTES"),
                lambda: files.upload_folder(app),
            ),
        ],
    )
    app.add_middleware(
        Authentication,
        keys=keys,
        limits=RateLimits(settings.max_concurrent_per_key, settings.rate_per_key, telemetry.clock),
        admin_key=settings.admin_api_key,
        on_loopback=on_loopback,
        insecure=settings.insecure,
        open_paths=open_paths(settings),
    )
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, **cors_options(settings))
    app.add_middleware(
        RequestLifetime,
        model=next(iter(settings.served)),
        clock=telemetry.clock,
        observers=telemetry.observers,
        drain=drain,
        dialects=DIALECTS,
    )


def _media_limit(app: FastAPI, settings: Settings) -> int:
    """Return the maximum size in bytes of a request body that may contain images or audio; 0 as long as no served model
    takes images or audio.
    """
    models = app.state.services.models.statuses()
    return settings.max_media_body_bytes if any(status.medium is not None for status in models) else 0


def cors_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of Starlette's CORSMiddleware, which say what web pages of the origins that the settings
    allow may send and read.
    """
    return {
        "allow_origins": settings.origins,
        "allow_methods": ["GET", "HEAD", "POST", "DELETE"],
        "allow_headers": ["*"],
        "expose_headers": [
            "x-request-id",
            "retry-after",
            "server-timing",
            "x-genai-converted",
            "x-genai-ignored",
            "x-genai-not-stored",
        ],
    }


def open_paths(settings: Settings) -> frozenset[str]:
    """Return the URL paths that can be requested without an API key, such as those of health checks. They depend on
    whether the web page is switched on and whether metrics are open.
    """
    paths = OPEN_PATHS | page.open_paths() if settings.ui else OPEN_PATHS
    return paths | {metrics.PATH} if settings.metrics == "open" else paths
