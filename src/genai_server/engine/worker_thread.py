"""A thread that runs jobs which prepare requests, such as encoding images (`WorkerThread`). Tenants (API keys) take
turns, and low-priority jobs come last.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerThread:
    """Runs jobs in a thread of its own, one at a time. Tenants (API keys) take turns, and low-priority jobs come after
    all others. Jobs of the same tenant run in the order of their submission.

    With `has_second`, a second thread runs jobs of normal priority, so that a tenant need not wait for another tenant's
    long job. `name` is the prefix of the threads' names. Each thread is started by the first job that needs it, within
    the context manager that `starting` returns, and first calls `initializer`.
    """

    def __init__(
        self,
        name: str,
        initializer: Callable[[], object] | None = None,
        *,
        has_second: bool = False,
        starting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._num_threads = 2 if has_second else 1
        self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix=name, initializer=initializer)
        self._starting = starting
        # The waiting jobs, by whether they have low priority and by tenant. The tenant with the next turn comes first.
        self._jobs: dict[bool, dict[str, deque[Callable[[], None]]]] = {True: {}, False: {}}
        # The tenants of the jobs that run.
        self._running: set[str] = set()
        # Guards the last two.
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], T], *, tenant: str = "", low_priority: bool = False) -> Future[T]:
        """Queue `job`, a function without arguments, and return a future for its result or its exception. Any thread
        may call this.

        `tenant` identifies the API key for which the job is done, and `low_priority` says whether the job comes after
        all others.
        """
        future: Future[T] = Future()
        with self._lock:
            self._jobs[low_priority].setdefault(tenant, deque()).append(lambda: _run(job, future))
            self._begin_next()
        return future

    def _begin_next(self) -> None:
        """Start waiting jobs while threads are free. The caller must hold the object's lock."""
        while len(self._running) < self._num_threads:
            waiting = self._jobs[False]
            if not waiting and not self._running:
                waiting = self._jobs[True]
            tenant = next((tenant for tenant in waiting if tenant not in self._running), None)
            if tenant is None:
                return
            jobs = waiting.pop(tenant)
            job = jobs.popleft()
            if jobs:
                waiting[tenant] = jobs  # behind all others
            self._running.add(tenant)
            with self._starting():
                self._threads.submit(self._run_turn, tenant, job)

    def _run_turn(self, tenant: str, job: Callable[[], None]) -> None:
        job()
        with self._lock:
            self._running.remove(tenant)
            self._begin_next()


def _run(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # as executors do: the future's reader gets it
        future.set_exception(error)
