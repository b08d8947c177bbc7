"""A thread that prepares things for requests, those of the background last."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerThread:
    """Runs one job at a time, in the order in which they came, but those of the background after all others.

    `initializer` is called in the thread, which starts with its first job.
    """

    def __init__(self, name: str, initializer: Callable[[], object] | None = None) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=initializer)
        self._jobs: deque[Callable[[], None]] = deque()
        self._background: deque[Callable[[], None]] = deque()

    def submit(self, job: Callable[[], T], *, background: bool = False) -> Future[T]:
        """Run a job; returns a future with its result. Any thread may call this."""
        future: Future[T] = Future()
        (self._background if background else self._jobs).append(lambda: _run(job, future))
        self._thread.submit(self._next)
        return future

    def _next(self) -> None:
        (self._jobs or self._background).popleft()()


def _run(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # as executors do: the future's reader gets it
        future.set_exception(error)
