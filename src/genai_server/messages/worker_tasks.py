"""The messages between an API process and the worker pool, on the connection to the supervisor.

Each `RunTasks`, `StartProcess` and `ReserveSpace` of an API process is answered once for each of its ids: by `Done`,
`Ended` or `Refused`.
"""

from typing import Any

from msgspec import Struct

from genai_server.messages.error import ErrorInfo

# A file of an image, which an operator may let be large, is within a frame.
MAX_FRAME_BYTES = 2**32 - 1


class TaskOwner(Struct, frozen=True):
    """The request that a task is part of. Tenants take turns, and so do the requests of a tenant."""

    # Stands for the request's API key; "" for all requests without one.
    tenant: str = ""
    # The request's unique id.
    request: str = ""
    # Whether the task may wait for all tasks that are not of low priority.
    low_priority: bool = False


class Task(Struct, frozen=True):
    """Work on what a request has sent, for a process of the pool."""

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
    """Run tasks; all of them are taken on, or all are refused."""

    # The id of the first one; those of the others follow.
    first_id: int
    tasks: list[Task]
    # The id of the disk space that they write into, if they do.
    space: int | None = None


class StartProcess(Struct, frozen=True, tag=True):
    """Start a worker process before its first task arrives, unless one for it, or enough others, are idle."""

    id: int
    kind: str
    # As in `Task`.
    spec: dict[str, Any]


class ReserveSpace(Struct, frozen=True, tag=True):
    """Wait until this many bytes of the disk space for what is prepared are free, and take them."""

    id: int
    owner: TaskOwner
    num_bytes: int


class ResizeSpace(Struct, frozen=True, tag=True):
    """Keep only this many of the bytes taken; with 0, none, or do not wait for them any longer. Not answered.

    Bytes that tasks may still write are returned when these have ended.
    """

    id: int
    num_bytes: int


class CancelTask(Struct, frozen=True, tag=True):
    """Nobody waits for a task any more. Its file is removed when it has ended."""

    id: int


class Done(Struct, frozen=True, tag=True):
    """The answer of the process; empty for a process that is ready, and for space that is taken."""

    id: int
    answer: dict[str, Any]


class Ended(Struct, frozen=True, tag=True):
    """The process did not answer."""

    id: int
    # How it ended.
    reason: str
    # Whether it was ended because the task took too long; otherwise it died.
    timed_out: bool


class Refused(Struct, frozen=True, tag=True):
    """The task was not run."""

    id: int
    error: ErrorInfo


ToPool = RunTasks | StartProcess | ReserveSpace | ResizeSpace | CancelTask
FromPool = Done | Ended | Refused
