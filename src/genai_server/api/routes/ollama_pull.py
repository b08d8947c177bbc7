"""Ollama's /api/pull: fetches a model from a hub and serves it. For operators."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from genai_server.api.catalog import plain_name
from genai_server.api.generation.ndjson import LINES, LineStream
from genai_server.api.generation.request_context import while_connected
from genai_server.api.middleware.auth import require_admin
from genai_server.api.pulling import PullProgress
from genai_server.api.routes.ollama_models import OPERATORS_ERRORS
from genai_server.api.services import Services, TheServices
from genai_server.errors import MissingField, ModelNotFound, PullFailed
from genai_server.messages.commands import LoadModel, SetAlias
from genai_server.messages.status_file import ModelState
from genai_server.ollama_api.schemas import PullRequest
from genai_server.openai_api.schemas.base import JsonObject

router = APIRouter(tags=["ollama"], dependencies=[Depends(require_admin)], responses=OPERATORS_ERRORS)
_SUCCESS = {"status": "success"}


@router.post("/api/pull", responses=LINES)
async def pull_model(body: PullRequest, request: Request, services: TheServices) -> Response:
    """Fetch a model, and serve it by the repository's name; it is loaded with the first request for it.

    The hub is not asked for a model that is served already.
    """
    name = plain_name(body.model or body.name or "")
    if not name:
        raise MissingField("model is required", param="model")
    pull = _Pull(services, name)
    if body.stream is not False:
        return LineStream(pull, pull.lines())
    try:
        await while_connected(pull.whole(), request.receive)
    finally:
        pull.close()
    return JSONResponse(_SUCCESS)


class _Pull:
    """One pull, which ends when its client leaves; the next one goes on from there."""

    # What a stream tells of prompts.
    progress = None

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._given = name
        self._name, _, self._folder = name.partition(":")
        self._is_left = threading.Event()

    def close(self) -> None:
        """End it at its next bytes."""
        self._is_left.set()

    async def whole(self) -> None:
        """Run it to its end. Raises as `lines` does."""
        async for _ in self.lines():
            pass

    async def lines(self) -> AsyncGenerator[JsonObject]:
        """Its progress in Ollama's form. Raises PullFailed, and what the supervisor refuses the model with."""
        yield {"status": "pulling manifest"}
        if self._is_served():
            yield _SUCCESS
            return
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[PullProgress | None] = asyncio.Queue()

        def tell(progress: PullProgress) -> None:
            if self._is_left.is_set():
                raise PullFailed("stopped; the same pull continues from here")
            loop.call_soon_threadsafe(arrived.put_nowait, progress)

        # A thread of its own: it may take hours, and every request needs one of asyncio's.
        thread = ThreadPoolExecutor(1, "pull")
        working = loop.run_in_executor(thread, self._services.pull, self._name, self._folder, tell)
        thread.shutdown(wait=False)

        def ended(done: "asyncio.Future[Any]") -> None:
            if not done.cancelled():
                done.exception()  # if the client has left, nothing else looks at it
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
        """Whether the name is that of a served model which has not failed."""
        try:
            about = self._services.models.find(self._given)
        except ModelNotFound:
            return False
        return self._services.models.state(about) != ModelState.FAILED

    async def _serve(self, path: str) -> None:
        """Serve it, unless a model has its name already."""
        models = self._services.models
        known = {name for about in models.statuses() for name in (about.name, *about.aliases)}
        if self._name not in known:
            await models.command(LoadModel(self._name, path, self._services.settings.device.split(","), at_once=False))
        alias = f"{self._name}:{self._folder}"
        if self._folder and alias not in known:
            await models.command(SetAlias(alias, self._name))
