"""The drain before a stop: running requests continue to their ends, and no new one begins."""

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from genai_server.errors import ServerDraining, ServerStopping
from genai_server.http.error_responses import error_response
from genai_server.http.request_state import request_state

# Seconds in which requests that are cut off send their last event or response, also to slow clients.
LAST_WORDS = 5.0


class Drain:
    """Counts the running requests of this process, and ends them at a stop. Owned by the event loop."""

    def __init__(self, timeout: float) -> None:
        # In seconds.
        self.timeout = timeout
        self.is_draining = False
        # Requests that could not continue to their ends; known after `run`.
        self.num_cut_off = 0
        self._hurries = False
        self._running: set[asyncio.Task[object]] = set()
        self._cut_off: set[asyncio.Task[object]] = set()
        self._changed = asyncio.Event()

    def require_open(self) -> None:
        """Raise ServerDraining once no new request may begin."""
        if self.is_draining:
            raise ServerDraining

    async def run(self) -> None:
        """Wait until no request runs; after the timeout, or a call of `hurry`, cut off those that still do."""
        self.is_draining = True
        await self._wait(self.timeout)
        self._cut_off = set(self._running)
        self.num_cut_off = len(self._cut_off)
        for task in self._cut_off:
            task.cancel()
        self._hurries = False
        await self._wait(LAST_WORDS)

    def hurry(self) -> None:
        """Cut off running requests now."""
        self._hurries = True
        self._changed.set()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the current task as a request while the block runs; cutting it off cancels the task."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)
            self._cut_off.discard(task)
            self._changed.set()

    def cuts_off(self) -> bool:
        """Whether the current task was cancelled because it was cut off."""
        return asyncio.current_task() in self._cut_off

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running and not self._hurries:
                    self._changed.clear()
                    await self._changed.wait()


class Drained:
    """Counts running requests, and answers those that are cut off. Plain ASGI.

    A request runs once its body has come: the drain waits for no slow client.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with self.drain.counting():
            try:
                await self.app(scope, receive, send)
            except asyncio.CancelledError:
                if not self.drain.cuts_off():
                    raise
                if not request_state(scope).record.status:
                    await error_response(ServerStopping(), scope)(scope, receive, send)
