"""The endpoint /api/pull of Ollama's API: downloads a model from the Hugging Face Hub and serves it. Only for
operators.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from genai_server.apis.ollama.model_routes import OPERATORS_ERRORS
from genai_server.apis.ollama.schemas import PullRequest
from genai_server.errors import MissingField, ModelNotFound, PullFailed
from genai_server.generation.catalog import plain_name
from genai_server.generation.dependencies import Services, ServicesDep, while_connected
from genai_server.generation.pulling import PullProgress
from genai_server.http.json_response import JsonObject
from genai_server.http.middleware.authentication import require_admin
from genai_server.http.streams import LINES, LineStream
from genai_server.messages.server_status import ModelState
from genai_server.messages.supervisor import LoadModel, SetAlias

router = APIRouter(tags=["ollama"], dependencies=[Depends(require_admin)], responses=OPERATORS_ERRORS)
_SUCCESS = {"status": "success"}


@router.post("/api/pull", responses=LINES)
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
