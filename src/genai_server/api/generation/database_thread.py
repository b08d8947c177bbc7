"""The thread that works on a database: owners take turns, and no job holds up others for longer than its time."""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from genai_server.api.generation.record_database import RecordDatabase
from genai_server.errors import StoreUnavailable

# Most jobs of one owner that wait; each may hold a response.
_MAX_WAITING = 64

T = TypeVar("T")


@dataclass
class _Job:
    do: Callable[[RecordDatabase], Any]
    # In seconds of time.monotonic.
    deadline: float
    done: "Future[Any]"


class DatabaseThread:
    """A database, and the thread that owns it, which starts with the first job.

    The thread never keeps the process: a disk that hangs can hold it for ever.
    """

    def __init__(self, database: RecordDatabase, name: str, patience: float) -> None:
        self._database = database
        self._name = name
        # Seconds that a job may take, its waiting included.
        self._patience = patience
        # Guards what follows. It is never held while a job runs.
        self._changed = threading.Condition()
        # Waiting jobs by owner, in the order of their turns; no queue is empty.
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        # When the thread has closed the database.
        self._ended: Future[None] = Future()

    @property
    def is_started(self) -> bool:
        """Whether there has been a job."""
        return self._thread is not None

    async def run(self, owner: str | None, do: Callable[[RecordDatabase], T]) -> T:
        """The result of a job. One that is not done in time is stopped, or was never begun.

        Raises StoreUnavailable, and whatever the job raises.
        """
        done: Future[T] = Future()
        self._submit(owner or "", _Job(do, time.monotonic() + self._patience, done))
        try:
            async with asyncio.timeout(self._patience):
                return await asyncio.wrap_future(done)
        except TimeoutError:
            raise StoreUnavailable(f"the store takes longer than {self._patience:g} s") from None

    async def close(self) -> None:
        """Let the thread do what waits, and close the database; a disk that hangs is not waited for."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self.is_started:
            try:
                async with asyncio.timeout(self._patience):
                    await asyncio.wrap_future(self._ended)
            except TimeoutError:
                return

    def _submit(self, owner: str, job: _Job) -> None:
        with self._changed:
            if self._is_closed:
                raise StoreUnavailable("the store is closed")
            if len(self._queues.get(owner, ())) >= _MAX_WAITING:
                raise StoreUnavailable(f"{_MAX_WAITING} accesses of this key wait for the store")
            self._queues.setdefault(owner, deque()).append(job)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            # False if no request waits for it any more.
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
        """The next job: of each owner one in turn. None once the database is to be closed."""
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
