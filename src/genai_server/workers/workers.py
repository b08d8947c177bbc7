"""The interface of the worker pool for packages that prepare requests, in whichever process the pool runs."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from genai_server.errors import Unavailable
from genai_server.messages.worker_tasks import Task, TaskOwner
from genai_server.workers.task_kinds import TaskKind

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
