"""The kinds of tasks of the worker pool, which runs work on untrusted input (`TaskKind`); the interface of the pool,
wherever it runs (`Workers`, `Space`); and calls whose result several requests share (`SharedCalls`).

The code of a task is in the module that its kind names. That module limits its process's memory; each task has its own
time limit.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from genai_server.errors import AudioReaderUnavailable, CheckerUnavailable, ImageReaderUnavailable, Unavailable
from genai_server.messages.supervisor_protocol import Task, TaskOwner

T = TypeVar("T")
# Makes the work of a call.
Begin = Callable[[], Coroutine[Any, Any, T]]


@dataclass(frozen=True)
class CostUnit:
    """A unit, such as pixels, in which the cost of waiting tasks is counted, with the setting that limits the total
    cost for each tenant (API key).
    """

    # In the plural.
    name: str
    # What there is of it, as in "images with 7 pixels".
    things: str
    # The field of `WorkerLimits` and the setting with the maximum.
    limit: str
    setting: str


PIXELS = CostUnit("pixels", "images", "waiting_pixels", "GENAI_MAX_WAITING_PIXELS")
SECONDS = CostUnit("seconds", "recordings and audio clips", "waiting_seconds", "GENAI_MAX_WAITING_AUDIO_SECONDS")
BYTES = CostUnit("bytes", "grammars", "waiting_bytes", "GENAI_MAX_WAITING_GRAMMAR_BYTES")


@dataclass(frozen=True)
class TaskKind:
    """A kind of tasks of the worker pool, such as reading images: the module that its worker processes run, the error
    if no process can be started, and the unit in which waiting tasks are counted. Each kind has its own processes.
    """

    name: str
    # The Python module, by its full name, that a worker process for such tasks is started with (`python -m`).
    module: str
    # What a process does, as in "checks grammars".
    purpose: str
    # The error if there is no process.
    unavailable: type[Unavailable]
    # What waiting tasks are counted in; None if each request has one at a time.
    unit: CostUnit | None = None
    # Whether a task may take minutes. Such tasks have few processes of their own, which give way to all others.
    is_long: bool = False


CHECK_GRAMMAR = TaskKind(
    "check_grammar", "genai_server.grammar_checker.compiler", "checks grammars", CheckerUnavailable, BYTES
)
READ_IMAGE = TaskKind("read_image", "genai_server.media.images.process", "reads images", ImageReaderUnavailable, PIXELS)
READ_AUDIO = TaskKind(
    "read_audio", "genai_server.media.images.process", "reads audio clips", ImageReaderUnavailable, SECONDS
)
DECODE = TaskKind("decode", "genai_server.media.audio.decoding", "decodes recordings", AudioReaderUnavailable, SECONDS)
DECODE_LONG = TaskKind(
    "decode_long",
    "genai_server.media.audio.decoding",
    "decodes long recordings",
    AudioReaderUnavailable,
    SECONDS,
    is_long=True,
)
READ_WINDOW = TaskKind(
    "read_window", "genai_server.media.audio.window_process", "reads recordings", AudioReaderUnavailable
)

TASK_KINDS = {kind.name: kind for kind in (CHECK_GRAMMAR, READ_IMAGE, READ_AUDIO, DECODE, DECODE_LONG, READ_WINDOW)}


# A process's answer to a task.
Answer = dict[str, Any]


@dataclass(frozen=True)
class Requester:
    """The request for which an image or another input is prepared: its owner (request and API key), and its cache salt.
    Only requests with equal salts share prepared images.
    """

    owner: TaskOwner
    # Prepared images are shared by requests with equal salts.
    cache_salt: str | None = None


class Space(Protocol):
    """Disk space that a request has reserved in the worker pool for the files that its tasks write. It is given back
    only when no task writes into it any more.
    """

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Run tasks that write files into this space, and return a future for the answer of each task.

        The futures raise the same errors as the futures of `Workers.submit`.
        """
        ...

    def shrink(self, num_bytes: int) -> None:
        """Give back all but `num_bytes` bytes of this disk space, as soon as no task writes into it."""
        ...

    def release(self) -> None:
        """Give back all of this disk space, as soon as no task writes into it."""
        ...


class Workers(Protocol):
    """The interface of a pool of worker processes that handle untrusted input, for the packages that prepare requests.
    WorkerPool is the pool itself, and WorkerClient gives access to a pool in another process. Only the event loop may
    use it.
    """

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Run the tasks of one request, and return a future for the answer of each task. Cancelling a future ends its
        task.

        All tasks are accepted, or none if too much work of the request's tenant (API key) already waits; the futures
        then raise QueueFull. They raise ProcessDied if two processes died of the task, ProcessTimeout if the task took
        too long, and the error of the kind of tasks if no process can be started.
        """
        ...

    def start_process(self, kind: TaskKind, spec: Mapping[str, Any]) -> "asyncio.Future[Answer]":
        """Start a worker process for tasks of this kind, with the parameters `spec`, before a task needs it. Does
        nothing if such a process is idle, or if there are many idle processes.

        The returned future is done when the process has started, and raises the error of the kind if it cannot be
        started.
        """
        ...

    async def reserve_space(self, owner: TaskOwner, num_bytes: int, unavailable: type[Unavailable]) -> Space:
        """Wait until `num_bytes` bytes of disk space are free for the request `owner`, reserve them, and return the
        space. Raises `unavailable` if the pool cannot be reached.

        A request must not wait for more space while it holds some, because requests that wait for each other would
        never end.
        """
        ...


class SharedCall(Generic[T]):
    """Work whose result several callers wait for. It runs as long as at least one caller waits. SharedCalls creates it;
    each caller that has joined must call `leave` in the end.

    `begin` makes the coroutine that does the work. `forget` is called when no further caller may join the work.
    """

    def __init__(self, begin: Begin[T], forget: Callable[["SharedCall[T]"], None]) -> None:
        self.num_waiting = 0
        self._begin = begin
        self._forget = forget
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def result(self) -> T:
        """Wait for the work and return its result, or raise its exception. If the caller is cancelled, the work goes
        on.
        """
        return await asyncio.shield(self._task)

    def leave(self) -> None:
        """Record that one caller no longer waits for the result. If no other caller waits, the work is cancelled."""
        self.num_waiting -= 1
        if not self.num_waiting:
            self._task.cancel()
            self._forget(self)

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        """Let `callback` be called, with the work's asyncio task, when the work has ended or was cancelled."""
        self._task.add_done_callback(callback)

    async def _run(self) -> T:
        return await self._begin()

    def _ended(self, task: "asyncio.Task[T]") -> None:
        self._forget(self)
        if not task.cancelled():
            task.exception()  # nobody else may ask for it


class SharedCalls(Generic[T]):
    """Work that requests wait for at the moment, by key: requests that need work with the same key at the same time
    share one SharedCall, so that the work is done once. Only the event loop may use it.
    """

    def __init__(self) -> None:
        self._calls: dict[str, SharedCall[T]] = {}

    def __contains__(self, key: str) -> bool:
        """Return whether work with this key is running."""
        return key in self._calls

    def join(self, key: str, begin: Begin[T]) -> SharedCall[T]:
        """Join the running work with this key, or start it with the coroutine that `begin` makes. Returns the
        SharedCall.

        The caller must `leave` the call in the end.
        """

        def forget(call: SharedCall[T]) -> None:
            if self._calls.get(key) is call:
                del self._calls[key]

        if key not in self._calls:
            self._calls[key] = SharedCall(begin, forget)
        call = self._calls[key]
        call.num_waiting += 1
        return call

    async def run(self, key: str, begin: Begin[T]) -> T:
        """Wait for the running work with this key, or for the coroutine that `begin` makes if there is none, and return
        its result. Raises the work's exception.
        """
        call = self.join(key, begin)
        try:
            return await call.result()
        finally:
            call.leave()
