"""Threads that render and encode long prompts, shared fairly between API keys."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from genai_server.messages.worker_tasks import TaskOwner
from genai_server.workers.task_queue import TaskQueue

T = TypeVar("T")


class TextThreads:
    """Runs up to `slots` jobs at a time in threads, in the fair order of TaskQueue. For use in the event loop only. The
    caller must close it.

    A tenant (API key) without running jobs need not wait for the jobs of other tenants. `clock` returns seconds.
    """

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        # No job is ended before it is done.
        self._queue = TaskQueue[asyncio.Future[None]](slots, clock, grace=math.inf)
        # The queue may run one job beyond its slots.
        self._threads = ThreadPoolExecutor(slots + 1, "text")

    async def run(self, job: Callable[[], T], owner: TaskOwner) -> T:
        """Run a job for a request of the owner in a thread, when its turn comes, and return the job's result."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._queue.add(turn, owner)
        self._begin_next()
        try:
            await turn
            running = self._threads.submit(job)
        except BaseException:
            if not self._queue.abandon(turn, owner):  # its turn has come in the meantime
                self._end(turn)
            raise
        # A job that nobody waits for any more occupies its thread to its end, unless it has not begun.
        running.add_done_callback(lambda _: _call_soon(loop, partial(self._end, turn)))
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Stop the threads without waiting for running jobs. Waiting jobs are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin_next(self) -> None:
        while (turn := self._queue.next()) is not None:
            if not turn.cancelled():  # otherwise `run` ends it
                turn.set_result(None)

    def _end(self, turn: "asyncio.Future[None]") -> None:
        self._queue.finish(turn)
        self._begin_next()


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call)
