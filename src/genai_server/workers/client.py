"""The worker pool as an API process sees it: the connection to it, and what waits for its answers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import msgspec

from genai_server.errors import AudioReaderUnavailable, Unavailable
from genai_server.messages.connection import connect
from genai_server.messages.protocol import Hello, encode_frame
from genai_server.messages.worker_tasks import (
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
    pool_client_decoder,
)
from genai_server.workers.pool import remove
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.task_kinds import TASK_KINDS, TaskKind
from genai_server.workers.workers import Answer

_GONE = "the pool of processes for the work on requests cannot be reached"

# Address and secret of the pool now; both are "" if it has ended.
FindPool = Callable[[], tuple[str, str]]


@dataclass(frozen=True)
class _Waiting:
    """What waits for an answer of the pool."""

    answer: "asyncio.Future[Answer]"
    # The error if the pool cannot be reached.
    unavailable: type[Unavailable]
    # The file that the task writes, if it does.
    target: str = ""


class WorkerClient:
    """Connects to the pool when there is something to do. Belongs to the event loop; must be closed. See Workers."""

    def __init__(self, find_pool: FindPool) -> None:
        self._find_pool = find_pool
        self._ids = count()
        self._waiting: dict[int, _Waiting] = {}
        self._transport: asyncio.WriteTransport | None = None
        # What is sent once there is a connection.
        self._unsent: list[ToPool] = []
        self._connection: asyncio.Task[None] | None = None

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """See Workers."""
        if not tasks:
            return []
        ids = [next(self._ids) for _ in tasks]
        answers = [
            self._wait(id, TASK_KINDS[task.kind].unavailable, task.target) for id, task in zip(ids, tasks, strict=True)
        ]
        self._send(RunTasks(ids[0], list(tasks)))
        return answers

    def start_process(self, kind: TaskKind, spec: Mapping[str, Any]) -> "asyncio.Future[Answer]":
        """See Workers."""
        id = next(self._ids)
        started = self._wait(id, kind.unavailable)
        self._send(StartProcess(id, kind.name, dict(spec)))
        return started

    async def reserve_space(self, owner: TaskOwner, num_bytes: int) -> "_Space":
        """See Workers."""
        id = next(self._ids)
        space = _Space(partial(self._resize, id))
        taken = self._wait(id, AudioReaderUnavailable)
        self._send(ReserveSpace(id, owner, num_bytes))
        try:
            await taken
        except BaseException:
            space.release()
            raise
        return space

    def close(self) -> None:
        """Leave the pool, which ends the tasks of this process."""
        if self._connection is not None:
            self._connection.cancel()
        self._lose()

    def _wait(self, id: int, unavailable: type[Unavailable], target: str = "") -> "asyncio.Future[Answer]":
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[id] = _Waiting(answer, unavailable, target)
        answer.add_done_callback(lambda answer: self._send(CancelTask(id)) if answer.cancelled() else None)
        return answer

    def _resize(self, id: int, num_bytes: int) -> None:
        self._send(ResizeSpace(id, num_bytes))

    # the connection

    def _send(self, message: ToPool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame([message]))
        elif isinstance(message, RunTasks | StartProcess | ReserveSpace) or self._unsent:
            self._unsent.append(message)
            if self._connection is None:
                self._connection = asyncio.create_task(self._serve_connection())
        # Otherwise the pool has lost what the message is about, with the connection.

    async def _serve_connection(self) -> None:
        """Connect, and read until the connection ends."""
        reason: str = ""
        try:
            address, secret = await asyncio.to_thread(self._find_pool)
            transport, connection = await connect(address, pool_client_decoder(), self._receive)
            try:
                unsent, self._unsent = self._unsent, []
                transport.write(encode_frame([Hello(secret)]))
                for message in unsent:
                    transport.write(encode_frame([message]))
                self._transport = transport
                await connection.ended
            finally:
                transport.close()
        except (OSError, ValueError, msgspec.DecodeError) as error:
            reason = f": {error}"
        finally:
            self._connection = None
            self._lose(reason)

    def _lose(self, reason: str = "") -> None:
        """Fail all that waits for the pool."""
        self._transport, self._unsent = None, []
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.answer.done():
                one.answer.set_exception(one.unavailable(_GONE + reason))

    def _receive(self, message: FromPool) -> None:
        one = self._waiting.pop(message.id, None)
        if one is None:
            return
        if one.answer.done():
            if isinstance(message, Done) and one.target:
                remove(one.target)
            return
        match message:
            case Done(_, answer):
                one.answer.set_result(answer)
            case Ended(_, reason, timed_out):
                one.answer.set_exception(ProcessTimeout(reason) if timed_out else ProcessDied(reason))
            case Refused(_, error):
                one.answer.set_exception(error.to_error())


class _Space:
    """See Space."""

    def __init__(self, resize: Callable[[int], None]) -> None:
        self._resize = resize

    def shrink(self, num_bytes: int) -> None:
        """See Space."""
        self._resize(num_bytes)

    def release(self) -> None:
        """See Space."""
        self._resize(0)
        self._resize = lambda num_bytes: None
