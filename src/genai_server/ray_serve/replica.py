"""A replica in a Ray Serve deployment: the app of `genai-server serve`, with engines and a supervisor (the process that
starts them) of its own.

Ray Serve calls the replica in an actor's process. The app receives ASGI messages there, so no port is opened.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any

from ray import serve
from starlette.types import Message
from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn

from genai_server.apis.app import Attachment
from genai_server.cli.serve.attach import SupervisorThread, find_or_start
from genai_server.cli.serve.composition import attached_app
from genai_server.cli.serve.preflight import check_models
from genai_server.config.settings import Settings
from genai_server.errors import ConfigurationError
from genai_server.logs import configure_logging
from genai_server.messages.server_status import EngineState
from genai_server.ray_serve.forwarded import READINESS, REPLICA_HEADER, ForwardedRequest, ReplicaAnswer, with_header
from genai_server.system.processes import open_runtime_folder

_CHECK_INTERVAL = 0.05


class Replica:
    """One replica of one model under Ray Serve: the app of a server with this model, in a Ray actor. The ingress, which
    receives all HTTP requests, calls `stream` and `answer`. Ray Serve creates and deletes it. Only the event loop of
    the actor's user code may use it.
    """

    # Whether it is to be stopped.
    _is_up = False

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve waits for it
        """Start the app and its engines, and return when the model is loaded. Raises ConfigurationError if it cannot be
        loaded.
        """
        configure_logging(settings.log_level, settings.log_format)
        texts = await asyncio.to_thread(check_models, settings)
        context = serve.get_replica_context()
        # Replicas of one machine write no sessions into each other's folders; a dead one's successor has its rank.
        profile_dir = settings.profile_dir / context.deployment / f"replica-{context.rank.rank}"
        settings = settings.model_copy(update={"profile_dir": profile_dir})
        self._id = context.replica_tag
        self._model = context.deployment
        # Requests that the app answers; those whose client has left may end a little later.
        self._running: set[asyncio.Task[None]] = set()
        find = partial(find_or_start, settings, os.getpid())
        attachment = Attachment(open_runtime_folder(os.getpid()), find)
        self._app = attached_app(settings, attachment, texts, on_loopback=settings.on_loopback)
        self._lifespan = LifespanOn(Config(self._app, lifespan="on", log_config=None))
        # Besides the app's own connection, so that the supervisor has ended when the replica has.
        self._supervisor = SupervisorThread(find)
        try:
            await self._lifespan.startup()
            if self._lifespan.should_exit:
                raise ConfigurationError("the app does not start; the replica's log says why")
            while (await self._answer(READINESS)).status != 200:
                self.check_health()
                await asyncio.sleep(_CHECK_INTERVAL)
        except BaseException:
            await self._stop()
            raise
        self._is_up = True

    def check_health(self) -> None:
        """Raise ConfigurationError if all engines have failed for good, so that Ray Serve replaces the replica. Called
        by Ray Serve.

        A model that is unloaded because it is idle has no engines, and counts as healthy.
        """
        engines = self._supervisor.status.engines
        if engines and all(engine.state == EngineState.FAILED for engine in engines):
            raise ConfigurationError("; ".join(f"device {engine.device}: {engine.error}" for engine in engines))

    async def stream(self, request: ForwardedRequest) -> AsyncIterator[list[Message]]:
        """Answer a request, and yield the ASGI messages of the app's response, in lists of those that are available at
        the same time.

        When Ray Serve ends the iteration, the app is told that the client has disconnected.
        """
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        has_left = asyncio.Event()
        body: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if body:
                return body.pop()
            await has_left.wait()
            return {"type": "http.disconnect"}

        task: asyncio.Task[None] = asyncio.ensure_future(self._app(request.scope(), receive, sent.put))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            has_ended = False
            while not has_ended:
                messages = [await sent.get()]
                while not sent.empty():
                    messages.append(sent.get_nowait())
                has_ended = messages[-1] is None
                batch = [message for message in messages if message is not None]
                if batch and batch[0]["type"] == "http.response.start":
                    batch[0] = with_header(batch[0], REPLICA_HEADER, self._id)
                if batch:
                    yield batch
            await task
        finally:
            has_left.set()

    async def answer(self, request: ForwardedRequest, replica: str | None) -> ReplicaAnswer | None:
        """Answer a request that is sent to all replicas, and return the complete response. If `replica` is the id of
        another replica, return None.
        """
        return await self._answer(request) if replica in (None, self._id) else None

    async def _answer(self, request: ForwardedRequest) -> ReplicaAnswer:
        messages = [message for batch in [batch async for batch in self.stream(request)] for message in batch]
        body = b"".join(message.get("body", b"") for message in messages)
        return ReplicaAnswer(self._id, self._model, messages[0]["status"], messages[0]["headers"], body)

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that stops the app and its engines; None if they have been stopped.

        Ray Serve calls this method after the drain and awaits the result. When Python calls it later, it returns None.
        """
        if not self._is_up:
            return None
        self._is_up = False
        return self._stop()

    async def _stop(self) -> None:
        await self._lifespan.shutdown()
        await asyncio.to_thread(self._supervisor.end)
