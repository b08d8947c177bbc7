"""The session of one API process with the worker pool."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from genai_server.errors import GenaiServerError, Unavailable
from genai_server.messages.frames import ErrorInfo
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
    TaskOwner,
    ToPool,
)
from genai_server.workers.pool import TakenSpace, WorkerPool
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import TASK_KINDS, Answer

log = logging.getLogger(__name__)


class PoolSession:
    """Passes messages of one API process to the pool, and sends answers back with `send`. For use in the pool's event
    loop only.
    """

    def __init__(self, pool: WorkerPool, send: Callable[[FromPool], None]) -> None:
        self._pool = pool
        self._send = send
        # By the id that the API process has given them.
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._spaces: dict[int, asyncio.Task[None]] = {}
        self._taken: dict[int, TakenSpace] = {}

    def close(self) -> None:
        """Handle the end of the API process: cancel its tasks and return its disk space."""
        for answer in list(self._answers.values()):
            answer.cancel()
        for waiting in list(self._spaces.values()):
            waiting.cancel()
        for taken in self._taken.values():
            taken.release()
        self._taken.clear()

    def receive(self, message: ToPool) -> None:
        """Handle a message of the API process. Raises KeyError for an unknown kind of tasks or an unknown space."""
        match message:
            case RunTasks(first_id, tasks, space):
                answers = self._pool.submit(tasks) if space is None else self._taken[space].submit(tasks)
                for id, answer in enumerate(answers, first_id):
                    self._answers[id] = answer
                    answer.add_done_callback(partial(self._answered, id))
            case StartProcess(id, kind, spec):
                started = self._answers[id] = self._pool.start_process(TASK_KINDS[kind], spec)
                started.add_done_callback(partial(self._answered, id))
            case CancelTask(id):
                if id in self._answers:
                    self._answers[id].cancel()
            case ReserveSpace(id, owner, num_bytes):
                waiting = asyncio.create_task(self._reserve(id, owner, num_bytes))
                self._spaces[id] = waiting
                waiting.add_done_callback(lambda _: self._spaces.pop(id, None))
            case ResizeSpace(id, num_bytes):
                self._resize(id, num_bytes)

    async def _reserve(self, id: int, owner: TaskOwner, num_bytes: int) -> None:
        self._taken[id] = await self._pool.reserve_space(owner, num_bytes, Unavailable)
        self._send(Done(id, {}))

    def _resize(self, id: int, num_bytes: int) -> None:
        if (waiting := self._spaces.get(id)) is not None and not num_bytes:
            waiting.cancel()
        if (taken := self._taken.get(id)) is None:
            return
        if num_bytes:
            taken.shrink(num_bytes)
        else:
            taken.release()
            del self._taken[id]

    def _answered(self, id: int, answer: "asyncio.Future[Answer]") -> None:
        del self._answers[id]
        if answer.cancelled():
            self._send(Ended(id, "nobody waits for it", timed_out=False))
            return
        match answer.exception():
            case None:
                self._send(Done(id, answer.result()))
            case ProcessDied() | ProcessTimeout() as error:
                self._send(Ended(id, str(error), timed_out=isinstance(error, ProcessTimeout)))
            case GenaiServerError() as error:
                self._send(Refused(id, ErrorInfo.from_error(error)))
            case error:
                log.error("internal error in a task of the worker pool", exc_info=error)
                self._send(Ended(id, "an internal error", timed_out=False))
