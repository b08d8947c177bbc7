"""The thread that owns a database. It serves owners in turn, and each job has a time limit."""

import asyncio
import sqlite3
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from genai_server.apis.shared.database import Database
from genai_server.errors import StoreUnavailable

# Waiting jobs of one owner; each may hold a response.
_MAX_WAITING = 64

T = TypeVar("T")
D = TypeVar("D", bound=Database)


@dataclass
class _Job:
    do: Callable[[Any], Any]
    # In seconds of time.monotonic.
    deadline: float
    done: "Future[Any]"


class DatabaseThread(Generic[D]):
    """A database and the thread that owns it. The thread starts with the first job.

    It is a daemon thread because a hanging disk may block it forever.
    """

    def __init__(self, database: D, name: str, timeout: float) -> None:
        self._database = database
        self._name = name
        # Time limit of a job in seconds, including waiting.
        self._timeout = timeout
        # Guards the following fields. Never held while a job runs.
        self._changed = threading.Condition()
        # Waiting jobs keyed by owner, in the order in which owners are served; no queue is empty.
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        # Done when the thread has closed the database.
        self._ended: Future[None] = Future()

    @property
    def is_started(self) -> bool:
        """Whether a job has been submitted."""
        return self._thread is not None

    async def run(self, owner: str | None, do: Callable[[D], T]) -> T:
        """Run a job and return its result. A job that exceeds the time limit is stopped or never started.

        Raises StoreUnavailable, and the job's errors.
        """
        done: Future[T] = Future()
        self._submit(owner or "", _Job(do, time.monotonic() + self._timeout, done))
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(done)
        except TimeoutError:
            raise StoreUnavailable(f"the store did not respond within {self._timeout:g} s") from None

    async def read(self, owner: str | None, do: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job that only reads, in a transaction. Raises as `run` does."""
        return await self.run(owner, lambda database: _within(database.transaction("DEFERRED"), do))

    async def write(self, owner: str | None, do: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in a transaction, of which an error leaves nothing. Raises as `run` does."""
        return await self.run(owner, lambda database: _within(database.transaction("IMMEDIATE"), do))

    async def close(self) -> None:
        """Finish waiting jobs and close the database, without waiting longer than the time limit."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self.is_started:
            try:
                async with asyncio.timeout(self._timeout):
                    await asyncio.wrap_future(self._ended)
            except TimeoutError:
                return

    def _submit(self, owner: str, job: _Job) -> None:
        with self._changed:
            if self._is_closed:
                raise StoreUnavailable("the store is closed")
            if len(self._queues.get(owner, ())) >= _MAX_WAITING:
                raise StoreUnavailable(f"{_MAX_WAITING} accesses with this API key are waiting for the store")
            self._queues.setdefault(owner, deque()).append(job)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            # False if the request has stopped waiting for the job.
            if job.done.set_running_or_notify_cancel():
                self._do(job)
        self._database.close()
        self._ended.set_result(None)

    def _do(self, job: _Job) -> None:
        self._database.deadline = job.deadline
        try:
            result = job.do(self._database)
        except BaseException as error:
            job.done.set_exception(error)
        else:
            job.done.set_result(result)

    def _next(self) -> _Job | None:
        """The next job, round-robin over owners; None when the database is to be closed."""
        with self._changed:
            while not self._queues:
                if self._is_closed:
                    return None
                self._changed.wait()
            owner, queue = self._queues.popitem(last=False)
            job = queue.popleft()
            if queue:
                self._queues[owner] = queue
            return job


def _within(transaction: AbstractContextManager[sqlite3.Connection], do: Callable[[sqlite3.Connection], T]) -> T:
    with transaction as file:
        return do(file)
