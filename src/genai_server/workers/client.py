"""The worker pool as an API process uses it. The pool runs in the supervisor's process (the process that starts
engines); `WorkerClient` sends it tasks over the connection to the supervisor.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from genai_server.errors import Unavailable
from genai_server.messages.supervisor_protocol import (
    CancelTask,
    Done,
    Ended,
    FromPool,
    Refused,
    ReserveSpace,
    ResizeSpace,
    RunTasks,
    StartProcess,
    Task,
    TaskOwner,
    ToPool,
)
from genai_server.workers.pool import remove
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import TASK_KINDS, Answer, TaskKind

_GONE = "the pool of processes for the work on requests cannot be reached"

# Sends a message to the supervisor's process; returns False if that cannot be reached.
SendToPool = Callable[[ToPool], bool]


@dataclass(frozen=True)
class _Waiting:
    """A task or reservation that the pool has not answered yet: the future for the answer, the class of the error if
    the connection is lost, and the file and disk space of the task.
    """

    answer: "asyncio.Future[Answer]"
    # The error if the pool cannot be reached.
    unavailable: type[Unavailable]
    # The file that the task writes, if it does, and the space for it.
    target: str = ""
    space: "_Space | None" = None


class WorkerClient:
    """Implements Workers, the interface of the worker pool, in an API process: sends tasks to the pool in the
    supervisor's process, and sets a future when an answer arrives. The SupervisorClient of the process creates it.

    Only the event loop may use it.
    """

    def __init__(self, send: SendToPool) -> None:
        self._send_to_pool = send
        self._ids = count()
        self._waiting: dict[int, _Waiting] = {}

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Ask the pool to run the tasks of one request, and return a future for the answer of each task.
        `Workers.submit` lists the errors that the futures raise; if the pool cannot be reached, they raise the error of
        the kind of task.
        """
        return self._submit(tasks, None)

    def _submit(self, tasks: Sequence[Task], space: "_Space | None") -> "list[asyncio.Future[Answer]]":
        if not tasks:
            return []
        ids = [next(self._ids) for _ in tasks]
        answers = [
            self._wait(id, TASK_KINDS[task.kind].unavailable, task.target, space)
            for id, task in zip(ids, tasks, strict=True)
        ]
        self._send(RunTasks(ids[0], list(tasks), None if space is None else space.id))
        return answers

    def start_process(self, kind: TaskKind, spec: Mapping[str, Any]) -> "asyncio.Future[Answer]":
        """Ask the pool to start a worker process for tasks of this kind in advance, with the parameters `spec`. The
        returned future is done when the process has started, and raises the kind's error if that fails.
        """
        id = next(self._ids)
        started = self._wait(id, kind.unavailable)
        self._send(StartProcess(id, kind.name, dict(spec)))
        return started

    async def reserve_space(self, owner: TaskOwner, num_bytes: int, unavailable: type[Unavailable]) -> "_Space":
        """Wait until the pool has reserved `num_bytes` bytes of disk space for the request `owner`, and return the
        space. Raises `unavailable` if the pool cannot be reached.
        """
        id = next(self._ids)
        space = _Space(id, self._submit, self._send)
        granted = self._wait(id, unavailable)
        self._send(ReserveSpace(id, owner, num_bytes))
        try:
            await granted
        except BaseException:
            space.release()
            raise
        return space

    def lose(self, reason: str = "") -> None:
        """Handle the end of the connection to the supervisor: each future that waits for the pool raises the error of
        its kind of task, with `reason` at the end of the message.
        """
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            if not entry.answer.done():
                entry.answer.set_exception(entry.unavailable(_GONE + reason))

    def receive(self, message: FromPool) -> None:
        """Handle the pool's answer to a task, a start or a reservation, by setting the future that waits for it."""
        waiting = self._waiting.pop(message.id, None)
        if waiting is None:
            return
        if waiting.answer.done():
            if isinstance(message, Done) and waiting.target:
                remove(waiting.target)
        else:
            self._answer(waiting, message)
        if waiting.space is not None:
            waiting.space.task_ended()

    def _wait(
        self, id: int, unavailable: type[Unavailable], target: str = "", space: "_Space | None" = None
    ) -> "asyncio.Future[Answer]":
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[id] = _Waiting(answer, unavailable, target, space)
        if space is not None:
            space.num_tasks += 1
        answer.add_done_callback(lambda answer: self._send(CancelTask(id)) if answer.cancelled() else None)
        return answer

    def _send(self, message: ToPool) -> None:
        # Otherwise the pool has lost what other messages are about, with the connection.
        if not self._send_to_pool(message) and isinstance(message, RunTasks | StartProcess | ReserveSpace):
            self.lose()

    @staticmethod
    def _answer(waiting: _Waiting, message: FromPool) -> None:
        match message:
            case Done(_, answer):
                waiting.answer.set_result(answer)
            case Ended(_, reason, timed_out):
                waiting.answer.set_exception(ProcessTimeout(reason) if timed_out else ProcessDied(reason))
            case Refused(_, error):
                waiting.answer.set_exception(error.to_error())


class _Space:
    """Disk space that WorkerClient has reserved in the pool for a request. Implements the interface Space.

    Files that the space's tasks have written, but that no caller waits for any more, are removed before the space is
    given back.
    """

    def __init__(
        self,
        id: int,
        submit: "Callable[[Sequence[Task], _Space], list[asyncio.Future[Answer]]]",
        send: Callable[[ToPool], None],
    ) -> None:
        self.id = id
        # Tasks that the pool has not answered yet.
        self.num_tasks = 0
        self._submit = submit
        self._send = send
        # How many bytes to keep, if that is fewer than the pool knows of.
        self._wanted_bytes: int | None = None

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Ask the pool to run tasks that write files into this space, and return a future for the answer of
        each task.
        """
        return self._submit(tasks, self)

    def shrink(self, num_bytes: int) -> None:
        """Give back all but `num_bytes` bytes of this disk space, as soon as no task writes into it."""
        if self._wanted_bytes is None or num_bytes < self._wanted_bytes:
            self._wanted_bytes = num_bytes
        self._resize()

    def release(self) -> None:
        """Give back all of this disk space, as soon as no task writes into it."""
        self.shrink(0)

    def task_ended(self) -> None:
        """Record that a task which writes into this disk space has ended, because the pool has answered it. Space that
        was to be given back is given back when no such task is left.
        """
        self.num_tasks -= 1
        self._resize()

    def _resize(self) -> None:
        if not self.num_tasks and self._wanted_bytes is not None:
            wanted_bytes, self._wanted_bytes = self._wanted_bytes, None
            self._send(ResizeSpace(self.id, wanted_bytes))
