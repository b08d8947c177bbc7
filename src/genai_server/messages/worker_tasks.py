"""Messages between an API process and the worker pool, on the API process's connection to the supervisor.

Each id in `RunTasks`, `StartProcess` and `ReserveSpace` is answered once, by `Done`, `Ended` or `Refused`.
"""

from typing import Any

from msgspec import Struct

from genai_server.messages.error import ErrorInfo

# A file of an image, which an operator may let be large, is within a frame.
MAX_FRAME_BYTES = 2**32 - 1


class TaskOwner(Struct, frozen=True):
    """The request that a task belongs to. The pool serves tenants (API keys) in turn, and a tenant's requests in
    turn.
    """

    # Stands for the request's API key; "" for all requests without one.
    tenant: str = ""
    # The request's unique id.
    request: str = ""
    # Whether the task may wait for all tasks that are not of low priority.
    low_priority: bool = False


class Task(Struct, frozen=True):
    """A piece of work on untrusted input, such as an image to decode, for one worker process."""

    # The name of a TaskKind.
    kind: str
    owner: TaskOwner
    # The parameters with which a worker process starts, such as the directory of the model whose images it prepares.
    # A process does only tasks of its own kind with parameters equal to its own.
    spec: dict[str, Any]
    # What the process is asked, and the bytes that belong to it.
    question: dict[str, Any]
    data: bytes = b""
    # Maximum seconds until the process has answered.
    timeout: float = 60.0
    # The size of the work, in the unit of the kind.
    cost: int = 0
    # A file that the process writes. It is removed unless the answer reaches the task's caller.
    target: str = ""


class RunTasks(Struct, frozen=True, tag=True):
    """Run these tasks. The pool accepts all of them or refuses all."""

    # The id of the first one; those of the others follow.
    first_id: int
    tasks: list[Task]
    # The id of the disk space that they write into, if they do.
    space: int | None = None


class StartProcess(Struct, frozen=True, tag=True):
    """Start a worker process of this kind before its first task arrives. Nothing is started if a process of this kind
    is idle, or if enough other processes are.
    """

    id: int
    kind: str
    # As in `Task`.
    spec: dict[str, Any]


class ReserveSpace(Struct, frozen=True, tag=True):
    """Reserve this many bytes of the limited disk space for prepared media, as soon as they are free."""

    id: int
    owner: TaskOwner
    num_bytes: int


class ResizeSpace(Struct, frozen=True, tag=True):
    """Reduce a reservation of disk space to this many bytes. With 0, the reservation ends, or the wait for it. The pool
    sends no answer.

    Bytes into which tasks may still write are freed when those tasks have ended.
    """

    id: int
    num_bytes: int


class CancelTask(Struct, frozen=True, tag=True):
    """The API process no longer waits for a task. The task's file is removed when the task has ended."""

    id: int


class Done(Struct, frozen=True, tag=True):
    """The answer to a task. The message also confirms that a process has started or disk space is reserved; its answer
    is then empty.
    """

    id: int
    answer: dict[str, Any]


class Ended(Struct, frozen=True, tag=True):
    """A task failed because its worker process ended without an answer."""

    id: int
    # How it ended.
    reason: str
    # Whether it was ended because the task took too long; otherwise it died.
    timed_out: bool


class Refused(Struct, frozen=True, tag=True):
    """The pool did not run a task, for this reason."""

    id: int
    error: ErrorInfo


ToPool = RunTasks | StartProcess | ReserveSpace | ResizeSpace | CancelTask
FromPool = Done | Ended | Refused
