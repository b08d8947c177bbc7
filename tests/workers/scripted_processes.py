"""Processes of the worker pool that do what a test says, and a pool in a folder that API processes can reach."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

from genai_server.engine_client.supervisor import SupervisorClient
from genai_server.errors import CheckerUnavailable
from genai_server.messages.supervisor_protocol import SupervisorAddress, Task, TaskOwner, read_address, write_address
from genai_server.supervisor.server import SupervisorServer
from genai_server.workers.pool import WorkerLimits, WorkerPool
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import CHECK_GRAMMAR, TaskKind, Workers
from tests.running_server import wait_until

SECRET = "secret"


class ScriptedProcess:
    """Answers a question when it is told to: `ok` answers with it, `die` and `hang` end the process."""

    def __init__(self, kind: TaskKind, spec: Mapping[str, Any]) -> None:
        self.kind, self.spec = kind, spec
        self.is_ended = False
        self.is_alive = True
        # Whether it has answered its last question.
        self.is_idle = True
        # The questions that it was asked.
        self.asked: list[Any] = []
        self._told = threading.Event()
        self._order = ""

    def ask(self, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        self.is_idle = False
        self.asked.append(question["name"])
        assert self._told.wait(60)
        self._told.clear()
        self.is_idle = True
        if self.is_ended or self._order == "die":
            self.is_alive = False
            raise ProcessDied("exit status -9")
        if self._order == "hang":
            self.is_alive = False
            raise ProcessTimeout(f"no answer within {timeout:g} s")
        return {"name": question["name"], "size": len(data)}

    def end(self) -> None:
        self.is_ended = True
        self.is_alive = False
        self._told.set()

    def tell(self, order: str) -> None:
        """Let it answer its question in this way."""
        self._order = order
        self._told.set()


class Script:
    """The processes of a pool, and what they work on."""

    def __init__(self) -> None:
        self.processes: list[ScriptedProcess] = []
        # Whether no process can be started, and how many of the next ones cannot.
        self.is_broken = False
        self.num_broken = 0
        # How many starts have begun, and whether they may end.
        self.num_starts = 0
        self.may_start = threading.Event()
        self.may_start.set()

    def start(self, kind: TaskKind, spec: Mapping[str, Any]) -> ScriptedProcess:
        """Start a process."""
        self.num_starts += 1
        assert self.may_start.wait(60)
        self.num_broken -= 1
        if self.is_broken or self.num_broken >= 0:
            raise CheckerUnavailable("no process")
        self.processes.append(ScriptedProcess(kind, spec))
        return self.processes[-1]

    @property
    def asked(self) -> list[str]:
        """The names of all tasks that have begun, in order for each process."""
        return [name for process in self.processes for name in process.asked]

    async def until_asked(self, *names: str) -> None:
        """Wait until these tasks have begun."""
        await until(lambda: set(names) <= set(self.asked))

    async def tell(self, name: str, order: str = "ok") -> None:
        """Wait until a task has begun, and let its process answer."""
        await self.until_asked(name)
        process = next(p for p in reversed(self.processes) if p.asked and p.asked[-1] == name)
        process.tell(order)

    async def tell_all(self, *names: str) -> None:
        """Let these tasks be answered one after the other."""
        for name in names:
            await self.tell(name)

    async def run(self, pool: Workers, *tasks: Task) -> list[dict[str, Any]]:
        """Submit tasks and let them be answered one after the other; returns the answers."""
        answers = pool.submit(tasks)
        await self.tell_all(*(task.question["name"] for task in tasks))
        return await asyncio.gather(*answers)


async def until(condition: Callable[[], bool]) -> None:
    """Wait in a thread until a condition is true."""
    await asyncio.to_thread(wait_until, condition)


def task(name: str, tenant: str = "a", *, kind: TaskKind = CHECK_GRAMMAR, **fields: Any) -> Task:
    """A task of a tenant, in a request of its own."""
    return Task(kind.name, TaskOwner(tenant, name), {}, {"name": name}, **fields)


@asynccontextmanager
async def scripted_pool(grace: float = 60.0, **limits: int) -> AsyncIterator[tuple[WorkerPool, Script]]:
    """A pool in this event loop with scripted processes."""
    script = Script()
    with closing(WorkerPool(WorkerLimits(**limits), script.start, grace=grace)) as pool:
        yield pool, script
    assert not any(process.is_alive for process in script.processes)


@asynccontextmanager
async def served_pool(folder: Path, **limits: int) -> AsyncIterator[tuple[Callable[..., SupervisorClient], Script]]:
    """A pool in a thread, as in a supervisor, and what makes clients of it as API processes have them."""
    script, clients = Script(), list[SupervisorClient]()
    with closing(SupervisorServer(folder, SECRET, lambda: WorkerPool(WorkerLimits(**limits), script.start))):

        def client(secret: str = SECRET) -> SupervisorClient:
            if secret != SECRET:
                write_address(folder, SupervisorAddress(str(folder / "supervisor.sock"), secret))
            clients.append(SupervisorClient(partial(read_address, folder)))
            return clients[-1]

        try:
            yield client, script
        finally:
            for one in clients:
                one.close()
    assert not any(process.is_alive for process in script.processes)
