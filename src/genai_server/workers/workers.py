"""What the packages that prepare requests know of the worker pool, in whichever process it is."""

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
    """The request that something is prepared for."""

    owner: TaskOwner
    # Prepared images are shared by requests with equal salts.
    cache_salt: str | None = None


class Space(Protocol):
    """Disk space that a request has taken. Tasks that write into it keep it until they have ended."""

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Run tasks that write into this space; see Workers."""
        ...

    def shrink(self, num_bytes: int) -> None:
        """Return all but this many bytes, once no task writes into the space."""
        ...

    def release(self) -> None:
        """Return all bytes, once no task writes into the space."""
        ...


class Workers(Protocol):
    """Processes for work on what strangers send. Belongs to the event loop."""

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Run tasks of one request: all of them, or none if too much work of the request's tenant would wait.

        A cancelled future ends its task. The futures raise ProcessDied if two processes died of the task,
        ProcessTimeout, QueueFull, and the error of the kind if no process can be started.
        """
        ...

    def start_process(self, kind: TaskKind, spec: Mapping[str, Any]) -> "asyncio.Future[Answer]":
        """Have a process ready for tasks, unless the processes of others would have to end for it.

        The future raises the error of the kind if it cannot be started.
        """
        ...

    async def reserve_space(self, owner: TaskOwner, num_bytes: int, unavailable: type[Unavailable]) -> Space:
        """Wait for disk space, and take it. Raises `unavailable` if the pool cannot be reached.

        A request must not wait for more while it has some: those that wait for one another would never end.
        """
        ...
