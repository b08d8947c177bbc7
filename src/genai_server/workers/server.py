"""The worker pool in the supervisor's process: a thread with an event loop, to which API processes connect."""

import asyncio
import hmac
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from genai_server.errors import GenaiServerError, Unavailable, in_one_line
from genai_server.messages.error import ErrorInfo
from genai_server.messages.protocol import Hello, encode_frame
from genai_server.messages.worker_tasks import (
    MAX_FRAME_BYTES,
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
    pool_decoder,
)
from genai_server.workers.pool import TakenSpace, WorkerPool
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.task_kinds import TASK_KINDS
from genai_server.workers.workers import Answer

log = logging.getLogger(__name__)
# Maximum bytes before the other side has shown the secret.
_MAX_UNAUTHENTICATED_BYTES = 1024
# An API process with this many unread bytes does not read any more, and is disconnected.
_MAX_BACKLOG_BYTES = 32 * 1024 * 1024


class WorkerServer:
    """Runs a pool for API processes, from construction to `close`. They must show `secret`.

    `make_pool` is called in the thread. Raises OSError if the socket cannot be opened.
    """

    def __init__(self, folder: Path, secret: str, make_pool: Callable[[], WorkerPool]) -> None:
        # Where API processes connect: a Unix socket's path, or host:port.
        self.address = ""
        self._folder = folder
        self._secret = secret
        self._make_pool = make_pool
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="workers", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the processes. Tasks that run or wait fail."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        pool, connected = self._make_pool(), set[_ApiProcess]()
        protocol = partial(_ApiProcess, pool, self._secret, connected)
        if sys.platform == "win32":
            server = await loop.create_server(protocol, "127.0.0.1", 0)
            self.address = "{}:{}".format(*server.sockets[0].getsockname())
        else:
            self.address = str(self._folder / "workers.sock")
            server = await loop.create_unix_server(protocol, self.address)
        self._ready.set()
        try:
            await self._stopping.wait()
        finally:
            server.close()
            pool.close()
            await asyncio.sleep(0)  # so that the tasks that fail now are reported
            for api_process in list(connected):
                api_process.abort()
            await asyncio.sleep(0)


class _ApiProcess(asyncio.Protocol):
    """The connection of one API process."""

    def __init__(self, pool: WorkerPool, secret: str, connected: "set[_ApiProcess]") -> None:
        # All connections that are open.
        self._connected = connected
        self._pool = pool
        self._secret = secret
        self._decoder = pool_decoder(_MAX_UNAUTHENTICATED_BYTES)
        self._is_welcome = False
        self._transport: asyncio.WriteTransport | None = None
        # By the id that the API process has given them.
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._spaces: dict[int, asyncio.Task[None]] = {}
        self._taken: dict[int, TakenSpace] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self._connected.add(self)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        assert self._transport is not None
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except (msgspec.DecodeError, RecursionError, KeyError) as error:
            log.warning("closed a connection to the worker pool that is not an API process: %s", in_one_line(error))
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop: nobody waits for the tasks any more."""
        self._transport = None
        self._connected.discard(self)
        for answer in list(self._answers.values()):
            answer.cancel()
        for waiting in list(self._spaces.values()):
            waiting.cancel()
        for taken in self._taken.values():
            taken.release()
        self._taken.clear()

    def _receive(self, message: ToPool) -> None:
        if not self._is_welcome:
            if not isinstance(message, Hello) or not hmac.compare_digest(
                message.secret.encode(), self._secret.encode()
            ):
                raise msgspec.DecodeError("no secret, or a wrong one")
            self._is_welcome = True
            self._decoder.max_bytes = MAX_FRAME_BYTES
            return
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

    def _send(self, message: FromPool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode_frame([message]))
        if self._transport.get_write_buffer_size() > _MAX_BACKLOG_BYTES:
            log.warning("disconnected an API process that does not read what the worker pool answers")
            self._transport.abort()
