"""A thread that prepares things for requests: tenants take turns, and the background comes last."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerThread:
    """Runs one job at a time: tenants take turns, and those of the background come after all others. Those of a tenant
    run in the order in which they came.

    `initializer` is called in the thread, which starts with its first job.
    """

    def __init__(self, name: str, initializer: Callable[[], object] | None = None) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=initializer)
        # By tenant, the one with the next turn first; of the background, and all others.
        self._jobs: dict[bool, dict[str, deque[Callable[[], None]]]] = {True: {}, False: {}}
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], T], *, tenant: str = "", background: bool = False) -> Future[T]:
        """Run a job; returns a future with its result. Any thread may call this."""
        future: Future[T] = Future()
        with self._lock:
            self._jobs[background].setdefault(tenant, deque()).append(lambda: _run(job, future))
        self._thread.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        with self._lock:
            tenants = self._jobs[False] or self._jobs[True]
            tenant = next(iter(tenants))
            jobs = tenants.pop(tenant)
            job = jobs.popleft()
            if jobs:
                tenants[tenant] = jobs  # behind all others
        job()


def _run(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # as executors do: the future's reader gets it
        future.set_exception(error)
