"""The kinds of tasks of the worker pool, the interface of the pool for packages that prepare requests, in whichever
process the pool runs, and calls whose result several requests share.

The code of a task is in the module that its kind names. The module limits its process's memory; each task has its own
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
    """A unit, such as pixels, in which the cost of waiting tasks is counted, and the setting that limits the total cost
    per tenant (API key).
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
    """A kind of tasks, such as preparing images: the module that its processes run, and how its waiting tasks are
    counted. Each kind has its own processes.
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
    """The request for which an image or another input is prepared: its owner, and the cache salt that limits the
    sharing of prepared images.
    """

    owner: TaskOwner
    # Prepared images are shared by requests with equal salts.
    cache_salt: str | None = None


class Space(Protocol):
    """Disk space that a request has reserved. It is not returned while tasks that write into it are running."""

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Run tasks that write into this space, and return a future for the answer of each task.

        The futures raise the same errors as the futures of `Workers.submit`.
        """
        ...

    def shrink(self, num_bytes: int) -> None:
        """Give back all but `num_bytes` bytes of the space, as soon as no task writes into the space."""
        ...

    def release(self) -> None:
        """Give back the whole space as soon as no task writes into the space."""
        ...


class Workers(Protocol):
    """A pool of worker processes that handle untrusted input. WorkerPool is the pool itself, and WorkerClient gives
    access to a pool in another process. For use in the event loop only.
    """

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Run the tasks of one request, and return a future for the answer of each task.

        All tasks are accepted, or none if too much work of the request's tenant already waits. Cancelling a future ends
        the task. The futures raise ProcessDied if two processes died of the task, ProcessTimeout, QueueFull, and the
        error of the kind of tasks if no process can be started.
        """
        ...

    def start_process(self, kind: TaskKind, spec: Mapping[str, Any]) -> "asyncio.Future[Answer]":
        """Start a process in advance, unless processes of another kind or specification would have to end for it.

        The future raises the error of the kind of tasks if the process cannot be started.
        """
        ...

    async def reserve_space(self, owner: TaskOwner, num_bytes: int, unavailable: type[Unavailable]) -> Space:
        """Wait for `num_bytes` of disk space and reserve it. Raises `unavailable` if the pool cannot be reached.

        A request must not wait for more space while it holds some, because requests that wait for each other would
        never end.
        """
        ...


class SharedCall(Generic[T]):
    """Work that runs as long as at least one caller waits for it. Each caller must call `leave` in the end. SharedCalls
    creates it.

    `forget` is called when no further caller may join the work.
    """

    def __init__(self, begin: Begin[T], forget: Callable[["SharedCall[T]"], None]) -> None:
        self.num_waiting = 0
        self._begin = begin
        self._forget = forget
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def result(self) -> T:
        """Wait for the work and return its result, or raise its exception."""
        return await asyncio.shield(self._task)

    def leave(self) -> None:
        """End one caller's wait for the result. The work is cancelled if no other caller waits."""
        self.num_waiting -= 1
        if not self.num_waiting:
            self._task.cancel()
            self._forget(self)

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        """Call `callback` when the work has ended or was cancelled."""
        self._task.add_done_callback(callback)

    async def _run(self) -> T:
        return await self._begin()

    def _ended(self, task: "asyncio.Task[T]") -> None:
        self._forget(self)
        if not task.cancelled():
            task.exception()  # nobody else may ask for it


class SharedCalls(Generic[T]):
    """The work that requests wait for now, by key: requests that need work with the same key share one SharedCall. For
    use in the event loop only.
    """

    def __init__(self) -> None:
        self._calls: dict[str, SharedCall[T]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether a call with this key is running."""
        return key in self._calls

    def join(self, key: str, begin: Begin[T]) -> SharedCall[T]:
        """Join the running call with this key, or start the work that `begin` returns.

        The caller must `leave` the call.
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
        """Return the result of the running call with this key, or of the work that `begin` returns."""
        call = self.join(key, begin)
        try:
            return await call.result()
        finally:
            call.leave()
