"""The endpoints of Ollama's API about models: /api/tags, /api/show, /api/ps, /api/version, and /api/pull, which
downloads a model from the Hugging Face Hub and serves it. The last one is only for operators.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from genai_server import __version__
from genai_server.apis.models.routes import ModelFiles, model_entry, read_files
from genai_server.apis.ollama.response import timestamp
from genai_server.apis.ollama.schemas import OllamaErrorResponse, PullRequest, ShowRequest
from genai_server.apis.shared.router import error_responses
from genai_server.errors import MissingField, ModelNotFound, PullFailed
from genai_server.generation.catalog import PullProgress, names_of, plain_name
from genai_server.generation.dependencies import Services, ServicesDep, while_connected
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import LeftOut
from genai_server.http.middleware.authentication import require_admin
from genai_server.http.streams import LINES, LineStream
from genai_server.messages.server_status import ModelState, ModelStatus
from genai_server.messages.supervisor_protocol import LoadModel, SetAlias

_ERRORS = error_responses(400, 404, 500, 503, error=OllamaErrorResponse)
# Responses of endpoints with features that require an admin key.
OPERATORS_ERRORS = error_responses(400, 403, 404, 500, 503, error=OllamaErrorResponse)
router = APIRouter(
    route_class=lenient_route(LeftOut(), takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=_ERRORS,
)
# The version of Ollama that this API corresponds to: some clients refuse older ones.
OLLAMA_VERSION = "0.19.0"
# The expiry of a model that is never unloaded.
_FOREVER = timedelta(days=100 * 365)


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Get the version of Ollama whose API this server implements, and this server's version."""
    return {"version": OLLAMA_VERSION, "server": f"genai-server {__version__}"}


@router.get("/api/tags")
async def list_models(services: ServicesDep) -> dict[str, Any]:
    """List models, loaded or not, with their aliases and adapters. Models that failed to load are left out."""
    found = []
    for status in services.models.usable():
        files = await asyncio.to_thread(read_files, status)
        more = {"modified_at": timestamp(files.modified), "capabilities": model_entry(services, status)["capabilities"]}
        found += [{**_entry(name, status, files), **more} for name in names_of(status)]
    return {"models": found}


@router.get("/api/ps")
async def list_running(services: ServicesDep) -> dict[str, Any]:
    """List the loaded models. `expires_at` is the time at which a model is unloaded if no more requests for it
    arrive.
    """
    found = []
    for status in services.models.statuses():
        if status.state != ModelState.READY:
            continue
        files = await asyncio.to_thread(read_files, status)
        remaining = _FOREVER if status.idle_unload is None else timedelta(seconds=status.idle_unload)
        is_on_host = all(device.partition(":")[0] in ("cpu", "scripted") for device in status.devices)
        found.append(
            {
                **_entry(status.name, status, files),
                "expires_at": timestamp(datetime.now(UTC) + min(remaining, _FOREVER)),
                "size_vram": 0 if is_on_host else files.size,
                "context_length": _context_length(services, status) or 0,
            }
        )
    return {"models": found}


@router.post("/api/show")
async def show_model(body: ShowRequest, services: ServicesDep) -> dict[str, Any]:
    """Get details of one model."""
    name = body.model or body.name
    if not name:
        raise MissingField("model", "is required")
    status = services.models.choose(name).about
    files = await asyncio.to_thread(read_files, status)
    length = _context_length(services, status)
    architecture = files.family or "unknown"
    served = services.models.served(status)
    template = served.codec.writer.source if served is not None and served.is_readable else ""
    parameters = {} if length is None else {"num_ctx": length}
    model_info = {"general.architecture": architecture, "general.basename": status.name}
    return {
        "modelfile": f"FROM {status.name}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        "template": template,
        "details": _details(files),
        "model_info": model_info | ({} if length is None else {f"{architecture}.context_length": length}),
        "capabilities": model_entry(services, status)["capabilities"],
        "modified_at": timestamp(files.modified),
    }


def _entry(name: str, status: ModelStatus, files: ModelFiles) -> JsonObject:
    named = name if ":" in name else f"{name}:latest"
    return {"name": named, "model": named, "size": files.size, "digest": files.digest, "details": _details(files)}


def _details(files: ModelFiles) -> JsonObject:
    return {
        "parent_model": "",
        "format": "onnx",
        "family": files.family,
        "families": [files.family] if files.family else [],
        "parameter_size": "",
        "quantization_level": "unknown",
    }


def _context_length(services: Services, status: ModelStatus) -> int | None:
    served = services.models.served(status)
    return None if served is None else served.max_length


pull_router = APIRouter(tags=["ollama"], dependencies=[Depends(require_admin)], responses=OPERATORS_ERRORS)
_SUCCESS = {"status": "success"}


@pull_router.post("/api/pull", responses=LINES)
async def pull_model(body: PullRequest, request: Request, services: ServicesDep) -> Response:
    """Download a model and serve it under the name of its repository. The first request for it loads it.

    If the model is already served, nothing is downloaded.
    """
    name = plain_name(body.model or body.name or "")
    if not name:
        raise MissingField("model", "is required")
    pull = _Pull(services, name)
    if body.stream is not False:
        return LineStream(pull, pull.lines())
    try:
        await while_connected(pull.whole(), request.receive)
    finally:
        pull.close()
    return JSONResponse(_SUCCESS)


class _Pull:
    """A download of a model. It stops when the client disconnects; the next request for the same model resumes it."""

    # Streams of answers have progress of prompts.
    progress = None

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._given = name
        self._name, _, self._folder = name.partition(":")
        self._is_left = threading.Event()

    def close(self) -> None:
        """Stop the download after the current chunk."""
        self._is_left.set()

    async def whole(self) -> None:
        """Run the download to its end. Raises the same errors as `lines`."""
        async for _ in self.lines():
            pass

    async def lines(self) -> AsyncGenerator[JsonObject]:
        """Run the download and report its progress in Ollama's format.

        Raises PullFailed, and the errors with which the supervisor refuses to serve the model.
        """
        yield {"status": "pulling manifest"}
        if self._is_served():
            yield _SUCCESS
            return
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[PullProgress | None] = asyncio.Queue()

        def report(progress: PullProgress) -> None:
            if self._is_left.is_set():
                raise PullFailed("stopped; the same pull continues from here")
            loop.call_soon_threadsafe(arrived.put_nowait, progress)

        # Use a separate thread: a download may take hours, and requests need asyncio's threads.
        thread = ThreadPoolExecutor(1, "pull")
        working = loop.run_in_executor(thread, self._services.store.pull, self._name, self._folder, report)
        thread.shutdown(wait=False)

        def ended(done: "asyncio.Future[Any]") -> None:
            if not done.cancelled():
                done.exception()  # retrieves the exception even if the client has disconnected
            arrived.put_nowait(None)

        working.add_done_callback(ended)
        while (progress := await arrived.get()) is not None:
            figures = {"digest": progress.digest, "total": progress.total, "completed": progress.completed}
            yield {"status": f"pulling {progress.name}", **figures}
        directory = await working
        yield {"status": "verifying sha256 digest"}
        await self._serve(str(directory))
        yield {"status": "writing manifest"}
        yield _SUCCESS

    def _is_served(self) -> bool:
        """Whether a model with this name is served and has not failed."""
        try:
            status = self._services.models.find(self._given)
        except ModelNotFound:
            return False
        return self._services.models.state(status) != ModelState.FAILED

    async def _serve(self, path: str) -> None:
        """Serve the model in the directory `path`, unless the name is already used."""
        models = self._services.models
        known = {name for status in models.statuses() for name in (status.name, *status.aliases)}
        if self._name not in known:
            await models.command(LoadModel(self._name, path, self._services.settings.device.split(","), at_once=False))
        alias = f"{self._name}:{self._folder}"
        if self._folder and alias not in known:
            await models.command(SetAlias(alias, self._name))
