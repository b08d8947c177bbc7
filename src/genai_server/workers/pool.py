"""The pool of worker processes, which run work on untrusted input, such as decoding images, for all API processes of a
server (`WorkerPool`); and the pool's side of its connection to each API process (`PoolSession`).
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from genai_server.config.settings import Settings
from genai_server.errors import GenaiServerError, QueueFull, Unavailable
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
    Task,
    TaskOwner,
    ToPool,
)
from genai_server.workers.process import AnyWorkerProcess, ProcessDied, ProcessTimeout, WorkerProcess
from genai_server.workers.task_queue import Reservation, SpaceBudget, TaskQueue
from genai_server.workers.tasks import TASK_KINDS, Answer, CostUnit, TaskKind

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerLimits:
    """The limits of a WorkerPool: how many tasks run at a time, how much work may wait for each tenant (API key), and
    how many bytes of disk space tasks may use.
    """

    # Tasks that run at a time; see TaskQueue.
    processes: int = 2
    # What may wait for each tenant: pixels of images, seconds of recordings and audio clips, bytes of grammars.
    waiting_pixels: int = 2_000_000_000
    waiting_seconds: int = 345_600
    waiting_bytes: int = 8 * 1024 * 1024
    # Bytes of disk space for decoded recordings and prepared images and audio clips.
    space: int = 2 * 1024 * 1024 * 1024

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that the server's settings give for the worker pool."""
        return cls(
            settings.preparation_processes,
            settings.max_waiting_pixels,
            settings.max_waiting_audio_seconds,
            settings.max_waiting_grammar_bytes,
            settings.prepared_bytes,
        )


# Tasks that may take minutes run one at a time, next to all others.
_LONG_SLOTS = 1
# How often a process may die of a task: the first one may have been killed from outside.
_ATTEMPTS = 2
# Maximum number of processes without a task.
_MAX_IDLE = 8
# Threads beside those for tasks, to start processes in advance.
_STARTING_THREADS = 2
# Seconds that a running task has even if nobody waits for its answer any more: a new process costs as much.
_GRACE = 1.0
_STOPPING = "the server is stopping"

# Starts a process of a kind with a specification. May block.
MakeWorkerProcess = Callable[[TaskKind, Mapping[str, Any]], AnyWorkerProcess]


@dataclass(eq=False)
class _Entry:
    """A task in the pool, waiting or running, with the future for its answer and the process that works on it."""

    task: Task
    kind: TaskKind
    # Of the processes that can do it.
    sort: str
    answer: "asyncio.Future[Answer]"
    # The disk space that it writes into, if it does.
    space: "GrantedSpace | None" = None
    # While one works on it.
    process: AnyWorkerProcess | None = None

    def end(self) -> None:
        """Record that the task has ended and writes nothing more, so that its disk space can be given back."""
        if self.space is not None:
            self.space.task_ended()


@dataclass(eq=False)
class _Idle:
    """A worker process that has no task at the moment, with the sort of tasks (kind and parameters) that it can run."""

    process: AnyWorkerProcess
    sort: str


class WorkerPool:
    """Runs tasks on untrusted input in worker processes, which are started on demand and replaced when they die.
    Implements Workers. The supervisor has one for all API processes; the owner must close it. Only the event loop may
    use it.

    While tasks wait for a slot, one spare process is kept ready for a tenant (API key) without running tasks: such a
    tenant need not wait for a slot (see TaskQueue), and starting a process takes a second.

    `clock` returns seconds. A running task may go on for `grace` seconds when nobody waits for its answer any more.
    """

    def __init__(
        self,
        limits: WorkerLimits,
        start: MakeWorkerProcess = WorkerProcess,
        clock: Callable[[], float] = time.monotonic,
        grace: float = _GRACE,
    ) -> None:
        self._limits = limits
        self._start = start
        self._queues = {
            False: TaskQueue[_Entry](limits.processes, clock, grace),
            True: TaskQueue[_Entry](_LONG_SLOTS, clock, grace),
        }
        self._grace = grace
        # One thread waits for each process that works or is started. Each queue may run one task beyond its slots.
        self._threads = ThreadPoolExecutor(limits.processes + _LONG_SLOTS + 2 + _STARTING_THREADS, "workers")
        # The least recently used first.
        self._idle: list[_Idle] = []
        self._processes: set[AnyWorkerProcess] = set()
        self._running: set[asyncio.Task[None]] = set()
        # Processes that are being started, and tasks without a process, by the sort of process.
        self._starting: defaultdict[str, list[asyncio.Task[Answer]]] = defaultdict(list)
        self._wanted: defaultdict[str, list[asyncio.Future[AnyWorkerProcess]]] = defaultdict(list)
        self._space = SpaceBudget(limits.space)
        self._is_closed = False

    # see Workers

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Queue the tasks of one request, and return a future for the answer of each task. If too much work of the
        tenant already waits, all futures raise QueueFull. `Workers.submit` lists the other errors.
        """
        return self._submit(tasks, None)

    def _submit(self, tasks: Sequence[Task], space: "GrantedSpace | None") -> "list[asyncio.Future[Answer]]":
        loop = asyncio.get_running_loop()
        entries = [_entry(task, loop.create_future(), space) for task in tasks]
        refusal = self._refusal(entries)
        for entry in entries:
            if refusal is not None:
                entry.answer.set_exception(refusal)
                continue
            self._queue(entry).add(entry, entry.task.owner)
            if space is not None:
                space.num_tasks += 1
            entry.answer.add_done_callback(partial(self._answer_done, entry))
        self._run_next()
        return [entry.answer for entry in entries]

    def start_process(self, kind: TaskKind, spec: Mapping[str, Any]) -> "asyncio.Future[Answer]":
        """Start a worker process for tasks of this kind in advance, with the parameters `spec`, unless such a process
        is idle or enough processes are. The returned future is done when the process has started, and raises the kind's
        error if that fails.
        """
        sort = _sort(kind, spec)
        if self._may_keep(sort):
            return asyncio.shield(next(iter(self._starting[sort]), None) or self._start_one(kind, spec, sort))
        nothing: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        nothing.set_result({})
        return nothing

    async def reserve_space(self, owner: TaskOwner, num_bytes: int, unavailable: type[Unavailable]) -> "GrantedSpace":
        """Wait until `num_bytes` bytes of disk space are reserved for the request `owner`, and return the space.
        `unavailable` is not used, because this pool can always be reached.
        """
        space = GrantedSpace(self._space, self._space.reserve(owner, num_bytes), self._submit)
        try:
            await space.reservation.granted
        except BaseException:
            space.release()
            raise
        return space

    def close(self) -> None:
        """End the worker processes, and block until they have ended. Running and waiting tasks fail with the error of
        their kind.
        """
        self._is_closed = True
        for running in self._running:
            running.cancel()
        for queue in self._queues.values():
            for entry in queue.waiting:
                if not entry.answer.done():
                    entry.answer.set_exception(entry.kind.unavailable(_STOPPING))
        for process in list(self._processes):
            process.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # the queues

    def _queue(self, entry: _Entry) -> TaskQueue[_Entry]:
        return self._queues[entry.kind.is_long]

    def _refusal(self, entries: Sequence[_Entry]) -> GenaiServerError | None:
        """Return an error if the tasks of one request may not be queued, because the pool is closed or too much work of
        the request's tenant (API key) already waits; None if they may.
        """
        if self._is_closed:
            return entries[0].kind.unavailable(_STOPPING) if entries else None
        waiting = [entry for queue in self._queues.values() for entry in queue.waiting]
        for unit, cost in _costs(entries).items():
            owner = entries[0].task.owner
            of_tenant = [
                entry
                for entry in waiting
                if (entry.task.owner.tenant, entry.task.owner.low_priority) == (owner.tenant, owner.low_priority)
            ]
            before = _costs(of_tenant)[unit]
            limit = getattr(self._limits, unit.limit)
            if before and before + cost > limit:
                return QueueFull(
                    f"{unit.things} with {before} {unit.name} wait to be prepared for "
                    f"{'this API key' if owner.tenant else 'clients without an API key'} already: {unit.setting} lets "
                    f"{limit} wait, given {cost} more"
                )
        return None

    def _run_next(self) -> None:
        """Start the tasks whose turn it is, and end running tasks that nobody waits for any more and that keep others
        waiting.
        """
        for queue in self._queues.values():
            while (entry := queue.next()) is not None:
                running = asyncio.create_task(self._run(queue, entry))
                self._running.add(running)
                running.add_done_callback(self._running.discard)
            for entry in queue.overdue():
                self._end(entry)
        # Afterwards, because the tasks that run now take idle processes first.
        asyncio.get_running_loop().call_soon(self._start_spare)

    def _answer_done(self, entry: _Entry, answer: "asyncio.Future[Answer]") -> None:
        if answer.cancelled():
            self._abandon(entry)

    def _abandon(self, entry: _Entry) -> None:
        """Handle a task whose answer nobody waits for any more.

        A waiting task is removed. A running task of a kind whose tasks may take minutes is ended together with its
        process. Any other running task goes on until it keeps other tasks waiting (see `TaskQueue.overdue`).
        """
        if self._queue(entry).abandon(entry, entry.task.owner):
            entry.end()
        if entry.kind.is_long:
            self._end(entry)
        elif not self._is_closed:
            asyncio.get_running_loop().call_later(self._grace, self._run_next)
        self._run_next()

    def _end(self, entry: _Entry) -> None:
        """Kill the process that works on a task, if there is one."""
        if entry.process is not None and not entry.process.is_ended:
            entry.process.end()

    async def _run(self, queue: TaskQueue[_Entry], entry: _Entry) -> None:
        """Run a task that `queue` has given a slot, and set the task's future to the answer or to the error. Then
        remove the task from the queue and start the next ones.
        """
        is_used = False
        try:
            answer = await self._answer(entry)
        except asyncio.CancelledError:
            if not entry.answer.done():
                entry.answer.set_exception(entry.kind.unavailable(_STOPPING))
        except Exception as error:
            if not entry.answer.done():
                entry.answer.set_exception(error)
        else:
            if not entry.answer.done():
                entry.answer.set_result(answer)
                is_used = True
        finally:
            queue.finish(entry)
            if entry.task.target and not is_used:  # what was written reaches nobody
                remove(entry.task.target)
            entry.end()
            if not self._is_closed:
                self._run_next()

    # the processes

    async def _answer(self, entry: _Entry) -> Answer:
        """Let an idle or new process run a task, and return its answer.

        If the process dies, the task is tried once more in another process. Raises ProcessDied if that dies, too,
        ProcessTimeout if the answer takes too long, and the kind's error if no process can be started.
        """
        task, kind, loop = entry.task, entry.kind, asyncio.get_running_loop()
        attempt = 1
        while True:
            process = await self._process(entry)
            entry.process = process
            try:
                if entry.answer.cancelled():
                    raise ProcessDied("nobody waits for it")
                answer = await loop.run_in_executor(self._threads, process.ask, task.question, task.data, task.timeout)
            except (ProcessDied, ProcessTimeout) as error:
                if process.is_alive:
                    self._keep(kind, task.spec, process)
                else:
                    self._processes.discard(process)
                if self._is_closed:
                    raise kind.unavailable(_STOPPING) from None
                if not process.is_ended and not process.is_alive:
                    log.warning("a process that %s has died (%s); another takes its place", kind.purpose, error)
                if attempt == _ATTEMPTS or isinstance(error, ProcessTimeout) or entry.answer.cancelled():
                    raise
                attempt += 1
            else:
                self._keep(kind, task.spec, process)
                return answer
            finally:
                entry.process = None

    async def _process(self, entry: _Entry) -> AnyWorkerProcess:
        """Return a process that can run a task: an idle process, a new one, or one whose task ends meanwhile, whichever
        is free first. Waits until there is one, and raises the kind's error if no process can be started.
        """
        if (process := self._take_idle(entry.sort)) is not None:
            return process
        wanted: asyncio.Future[AnyWorkerProcess] = asyncio.get_running_loop().create_future()
        waiting = self._wanted[entry.sort]
        waiting.append(wanted)
        try:
            if len(self._starting[entry.sort]) < len(waiting):
                self._start_one(entry.kind, entry.task.spec, entry.sort)
            return await wanted
        finally:
            if wanted in waiting:
                waiting.remove(wanted)

    def _take_idle(self, sort: str) -> AnyWorkerProcess | None:
        for idle in reversed(self._idle):
            if idle.sort == sort:
                self._idle.remove(idle)
                if idle.process.is_alive:
                    return idle.process
                self._processes.discard(idle.process)
                idle.process.end()
        return None

    async def _new_process(self, kind: TaskKind, spec: Mapping[str, Any]) -> AnyWorkerProcess:
        while len(self._idle) >= _MAX_IDLE:
            self._discard(self._idle[0])
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._start_in_thread, kind, spec)

    def _start_in_thread(self, kind: TaskKind, spec: Mapping[str, Any]) -> AnyWorkerProcess:
        process = self._start(kind, spec)
        self._processes.add(process)
        if self._is_closed:  # in the meantime; nobody waits for the process
            process.end()
        return process

    def _start_spare(self) -> None:
        """Start a spare process if tasks wait, so that a tenant (API key) without running tasks finds one. Does nothing
        if there is a spare process already, or if more tasks run than there are slots.
        """
        queue = self._queues[False]  # a long task takes far longer than the start of its process
        waiting = next(queue.waiting, None)
        if waiting is None or self._is_closed or not self._may_keep(waiting.sort):
            return
        has_spare = len(self._starting[waiting.sort]) > len(self._wanted[waiting.sort])
        num_running = sum(running.sort == waiting.sort for running in queue.running)
        if not has_spare and num_running <= self._limits.processes:
            self._start_one(waiting.kind, waiting.task.spec, waiting.sort)

    def _may_keep(self, sort: str) -> bool:
        """Return whether a process of this sort may be started before a task needs it: no idle process is of this sort,
        and there are few idle processes. Processes of one sort have the same kind and parameters.
        """
        return len(self._idle) < _MAX_IDLE and not any(idle.sort == sort for idle in self._idle)

    def _start_one(self, kind: TaskKind, spec: Mapping[str, Any], sort: str) -> "asyncio.Task[Answer]":
        """Begin to start a process for tasks of this kind with the parameters `spec`, and return the asyncio task that
        does it. The process then gets the first waiting task of its sort, or is kept idle. `sort` is the text that
        `_sort` returns for kind and parameters.
        """
        starting = asyncio.create_task(self._start_and_keep(kind, spec, sort))
        starting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # a task may report it
        self._starting[sort].append(starting)
        return starting

    async def _start_and_keep(self, kind: TaskKind, spec: Mapping[str, Any], sort: str) -> Answer:
        task = asyncio.current_task()
        assert task is not None
        try:
            process = await self._new_process(kind, spec)
        except BaseException as error:
            self._starting[sort].remove(task)
            waiting = self._wanted[sort]
            if len(waiting) > len(self._starting[sort]) and (wanted := _first(waiting)) is not None:
                wanted.set_exception(error)
            raise
        self._starting[sort].remove(task)
        self._keep(kind, spec, process)
        return {}

    def _keep(self, kind: TaskKind, spec: Mapping[str, Any], process: AnyWorkerProcess) -> None:
        """Give a process whose task has ended to the first waiting task that it can run, or keep the process idle.

        If there are too many idle processes, the least recently used one is ended.
        """
        sort = _sort(kind, spec)
        if (wanted := _first(self._wanted[sort])) is not None:
            wanted.set_result(process)
            return
        idle = _Idle(process, sort)
        self._idle.append(idle)
        same_sort = [other for other in self._idle if other.sort == idle.sort]
        if len(same_sort) > self._limits.processes + 1:
            self._discard(same_sort[0])
        if len(self._idle) > _MAX_IDLE:
            self._discard(self._idle[0])

    def _discard(self, idle: _Idle) -> None:
        self._idle.remove(idle)
        self._processes.discard(idle.process)
        idle.process.end()


class GrantedSpace:
    """Disk space that a request has reserved in the WorkerPool of this process. Implements the interface Space. It is
    given back only when no task writes into it any more.
    """

    def __init__(
        self,
        budget: SpaceBudget,
        reservation: Reservation,
        submit: "Callable[[Sequence[Task], GrantedSpace], list[asyncio.Future[Answer]]]",
    ) -> None:
        self.reservation = reservation
        # Tasks that wait or run, and may write into the space.
        self.num_tasks = 0
        self._budget = budget
        self._submit = submit
        # How many bytes are still wanted.
        self._wanted_bytes = reservation.num_bytes

    def submit(self, tasks: Sequence[Task]) -> "list[asyncio.Future[Answer]]":
        """Queue tasks that write files into this space, and return a future for the answer of each task."""
        return self._submit(tasks, self)

    def shrink(self, num_bytes: int) -> None:
        """Give back all but `num_bytes` bytes of this disk space, as soon as no task writes into it."""
        self._wanted_bytes = min(self._wanted_bytes, num_bytes)
        self._resize()

    def release(self) -> None:
        """Give back all of this disk space, as soon as no task writes into it."""
        self.shrink(0)

    def task_ended(self) -> None:
        """Record that a task which writes into this disk space has ended. Space that was to be given back is given back
        when no such task is left.
        """
        self.num_tasks -= 1
        self._resize()

    def _resize(self) -> None:
        if not self.num_tasks and self._wanted_bytes < self.reservation.num_bytes:
            self._budget.resize(self.reservation, self._wanted_bytes)


def remove(path: str) -> None:
    """Remove the file at `path` that a task has written, if it exists."""
    with contextlib.suppress(OSError):
        Path(path).unlink(missing_ok=True)


def _first(waiting: "list[asyncio.Future[AnyWorkerProcess]]") -> "asyncio.Future[AnyWorkerProcess] | None":
    """Remove futures from the beginning of the list `waiting` up to and including the first one that is not done, and
    return that one; None if all are done.
    """
    while waiting:
        if not (wanted := waiting.pop(0)).done():
            return wanted
    return None


def _entry(task: Task, answer: "asyncio.Future[Answer]", space: GrantedSpace | None) -> _Entry:
    kind = TASK_KINDS[task.kind]
    return _Entry(task, kind, _sort(kind, task.spec), answer, space)


def _sort(kind: TaskKind, spec: Mapping[str, Any]) -> str:
    """Return a text that identifies processes with this kind and these parameters. Processes with equal texts can run
    the same tasks.
    """
    return f"{kind.name} {json.dumps(spec, sort_keys=True)}"


def _costs(entries: Sequence[_Entry]) -> Counter[CostUnit]:
    """Return the total cost of tasks, by the unit (such as pixels) in which the cost of their kind is counted."""
    costs: Counter[CostUnit] = Counter()
    for entry in entries:
        if entry.kind.unit is not None:
            costs[entry.kind.unit] += entry.task.cost
    return costs


class PoolSession:
    """The pool's side of the connection to one API process: passes that process's messages to the worker pool, and
    sends the answers back with the function `send`. Only the pool's event loop may use it.
    """

    def __init__(self, pool: WorkerPool, send: Callable[[FromPool], None]) -> None:
        self._pool = pool
        self._send = send
        # By the id that the API process has given them.
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._spaces: dict[int, asyncio.Task[None]] = {}
        self._taken: dict[int, GrantedSpace] = {}

    def close(self) -> None:
        """Cancel the tasks of the API process and give back its disk space, because its connection has ended."""
        for answer in list(self._answers.values()):
            answer.cancel()
        for waiting in list(self._spaces.values()):
            waiting.cancel()
        for space in self._taken.values():
            space.release()
        self._taken.clear()

    def receive(self, message: ToPool) -> None:
        """Handle a message from the API process, such as tasks to run. Raises KeyError if the message names an unknown
        kind of tasks or unknown disk space.
        """
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
        if (space := self._taken.get(id)) is None:
            return
        if num_bytes:
            space.shrink(num_bytes)
        else:
            space.release()
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
