"""Processes for work on untrusted input: what crashes or blocks one of them affects nothing else.

A process runs worker_loop.py. It does one thing at a time, so that a crash can be attributed.
"""

import asyncio
import contextlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from genai_server.child_process import start_module
from genai_server.errors import Unavailable

log = logging.getLogger(__name__)
# Maximum seconds for starting a process on a busy machine.
_START_TIMEOUT = 60.0
# Processes of a pool: most of their work takes milliseconds, so more are not needed.
_PROCESSES = 2
# How often a process may die of a question: the first one may have been killed from outside.
_ATTEMPTS = 2
_STOPPING = "the server is stopping"
# Maximum number of models whose processes are kept.
_READERS = 4


class ProcessDied(Exception):
    """The process died of a question, or was killed from outside; the message says how."""


class ProcessTimeout(Exception):
    """The process was killed because an answer took too long."""


class WorkerProcess:
    """Starts a process and waits until it is ready. Every method may block; any thread may call `end`.

    The module gets `spec` as JSON, if there is any. Raises `unavailable` if the process cannot be started.
    """

    # The module that is run.
    module: ClassVar[str]
    # What the process does, as in "checks grammars".
    purpose: ClassVar[str]
    # The error if there is no process.
    unavailable: ClassVar[type[Unavailable]]

    def __init__(self, environment: Mapping[str, str], spec: Mapping[str, Any] | None = None) -> None:
        try:
            self._process = start_module(self.module, environment, [] if spec is None else [json.dumps(spec)])
        except OSError as error:
            raise self.unavailable(f"no process that {self.purpose} can be started: {error.strerror}") from None
        # Whether `end` was called.
        self.is_ended = False
        try:
            ready = self._exchange(b"", _START_TIMEOUT)
        except (ProcessDied, ProcessTimeout) as error:
            raise self.unavailable(f"the process that {self.purpose} does not start: {error}") from None
        if reason := ready.get("failed"):
            self.end()
            raise self.unavailable(f"the process that {self.purpose} does not start: {reason}")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process can take a question."""
        return self._process.poll() is None

    def ask(self, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        """Send a question with its bytes; returns the answer.

        Raises ProcessDied and ProcessTimeout, after which the process is gone.
        """
        head = json.dumps({**question, "size": len(data)}).encode()
        return self._exchange(head + b"\n" + data, timeout)

    def _exchange(self, question: bytes, timeout: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        too_late = threading.Event()

        def give_up() -> None:
            too_late.set()
            self._process.kill()

        limit = threading.Timer(timeout, give_up)
        limit.daemon = True
        limit.start()
        line = b""
        with contextlib.suppress(OSError, ValueError):  # the process has died; there is no line
            self._process.stdin.write(question)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        limit.cancel()
        if line.endswith(b"\n"):
            found: dict[str, Any] = json.loads(line)
            return found
        self._process.kill()
        status = self._process.wait()
        self._close()
        if too_late.is_set():
            raise ProcessTimeout(f"no answer within {timeout:g} s")
        raise ProcessDied(f"exit status {status}")

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        self.is_ended = True
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()


P = TypeVar("P", bound=WorkerProcess)
T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of something that a request has sent."""

    # Names it in the metrics.
    result: str
    # Why it cannot be used.
    reason: str = ""
    # What was made of it, if it can be used.
    value: T | None = None


class Reader(Protocol):
    """Reads something for one model."""

    pool: "ProcessPool[Any, Any]"


R = TypeVar("R", bound=Reader)


class Readers(Generic[R]):
    """The readers of the most recently used models. Belongs to the event loop; must be closed."""

    def __init__(self) -> None:
        # The least recently used first.
        self._readers: OrderedDict[Path, R] = OrderedDict()

    def get(self, directory: Path, make: Callable[[], R]) -> R:
        """The reader of a directory, or a new one. One that is not running is closed if there are too many."""
        if directory not in self._readers:
            for other in list(self._readers)[: max(0, len(self._readers) + 1 - _READERS)]:
                if not self._readers[other].pool.running:
                    self._readers.pop(other).pool.close()
            self._readers[directory] = make()
        self._readers.move_to_end(directory)
        return self._readers[directory]

    def has_room_for(self, directory: Path) -> bool:
        """Whether `get` closes no other reader."""
        return directory in self._readers or len(self._readers) < _READERS

    def close(self) -> None:
        """Close all readers."""
        for reader in self._readers.values():
            reader.pool.close()


@dataclass
class _Call(Generic[T]):
    """A running call."""

    result: "asyncio.Future[T]"
    # Number of coroutines that wait for it.
    waiting: int = 0


class ProcessPool(Generic[P, T]):
    """Has processes of one kind, which `start` starts when they are first needed, and replaces those that have died.

    Belongs to the event loop; must be closed.
    """

    def __init__(self, kind: type[P], start: Callable[[], P]) -> None:
        # Calls that are not answered yet, and processes that are started in advance.
        self.running = 0
        self._kind = kind
        self._start = start
        self._threads = ThreadPoolExecutor(_PROCESSES, kind.purpose.replace(" ", "-"))
        self._idle: list[P] = []
        self._processes: set[P] = set()
        self._calls: dict[bytes, _Call[T]] = {}
        self._closed = threading.Event()

    async def call(self, key: bytes, work: Callable[[], T], note: Callable[[T], None]) -> T:
        """Run `work` in a thread; it may use `with_process`. Calls with equal keys at the same time run once.

        A call that no coroutine waits for any more is not started. `note` receives the result once, in the event loop.
        """
        if key not in self._calls:
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            self._calls[key] = _Call(running)
            running.add_done_callback(lambda done: _note(done, note))
        call = self._calls[key]
        call.waiting += 1
        self.running += 1
        try:
            return await asyncio.shield(call.result)
        finally:
            self.running -= 1
            call.waiting -= 1
            if not call.waiting:
                call.result.cancel()
                if self._calls.get(key) is call:
                    del self._calls[key]

    async def start(self) -> None:
        """Start a process unless one is idle. Raises the error of the kind if it cannot be started."""
        self.running += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self.with_process, lambda process: None)
        finally:
            self.running -= 1

    def with_process(self, ask: Callable[[P], A]) -> A:
        """The result of `ask` with an idle process, or a new one. Only for the pool's threads.

        If the process dies, a new one is asked again. Raises ProcessDied if that dies, too, or if the process was ended
        by its method, ProcessTimeout, and the kind's error if no process can be started.
        """
        attempt = 1
        while True:
            process = self._take()
            try:
                answer = ask(process)
            except (ProcessDied, ProcessTimeout) as error:
                self._processes.discard(process)
                if self._closed.is_set():
                    raise self._kind.unavailable(_STOPPING) from None
                if not process.is_ended:
                    log.warning("a process that %s has died (%s); another takes its place", self._kind.purpose, error)
                if attempt == _ATTEMPTS or isinstance(error, ProcessTimeout) or process.is_ended:
                    raise
                attempt += 1
            else:
                self._idle.append(process)
                return answer

    def close(self) -> None:
        """End the processes. Blocks until they have ended."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._processes):
            process.end()

    def _take(self) -> P:
        """An idle process, or a new one."""
        with contextlib.suppress(IndexError):  # the other thread may have taken the last one
            while True:
                if (process := self._idle.pop()).is_alive:
                    return process
                self._processes.discard(process)
                process.end()
        if self._closed.is_set():
            raise self._kind.unavailable(_STOPPING)
        process = self._start()
        self._processes.add(process)
        if self._closed.is_set():  # closed in the meantime
            process.end()
        return process


def _note(done: "asyncio.Future[T]", note: Callable[[T], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        note(done.result())
