"""The database thread: owners take turns, and no failure in it blocks other owners or the process."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pytest

from genai_server.apis.responses.store_database import RecordDatabase
from genai_server.apis.shared.database_thread import DatabaseThread
from genai_server.errors import InvalidField, StoreUnavailable

T = TypeVar("T")
pytestmark = pytest.mark.anyio


def thread(patience: float = 30.0) -> DatabaseThread[RecordDatabase]:
    return DatabaseThread(RecordDatabase(None, 10, 100_000), "test", patience)


class Gate:
    """A job that waits until it is opened."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.is_open = threading.Event()

    def __call__(self, database: RecordDatabase) -> None:
        self.is_reached.set()
        assert self.is_open.wait(60)


async def begun(job: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    task = asyncio.ensure_future(job)
    await asyncio.sleep(0)  # it is queued now
    return task


def note(done: list[str], name: str, database: RecordDatabase) -> None:
    done.append(name)


async def test_owners_take_turns() -> None:
    database, gate, done = thread(), Gate(), list[str]()
    tasks = [await begun(database.run("alice", gate))]
    await asyncio.to_thread(gate.is_reached.wait)
    for name in ("alice 1", "alice 2", "alice 3", "bob 1", "bob 2", "carol 1"):
        tasks.append(await begun(database.run(name.split()[0], partial(note, done, name))))
    gate.is_open.set()
    await asyncio.gather(*tasks)
    await database.close()
    assert done == ["alice 1", "bob 1", "carol 1", "alice 2", "bob 2", "alice 3"]


async def test_a_full_queue_of_one_owner_refuses_no_other() -> None:
    database, gate = thread(), Gate()
    tasks = [await begun(database.run("alice", gate))]
    await asyncio.to_thread(gate.is_reached.wait)
    tasks += [await begun(database.run("alice", lambda _: None)) for _ in range(64)]
    with pytest.raises(StoreUnavailable, match="64 accesses with this API key are waiting"):
        await database.run("alice", lambda _: None)
    tasks.append(await begun(database.run("bob", lambda _: None)))
    gate.is_open.set()
    await asyncio.gather(*tasks)
    await database.close()


async def test_job_queued_too_long_is_never_run() -> None:
    database, gate, done = thread(0.05), Gate(), list[str]()
    blocking = await begun(database.run("alice", gate))
    with pytest.raises(StoreUnavailable, match=r"within 0\.05 s"):
        await database.run("bob", lambda _: done.append("late"))
    gate.is_open.set()
    with pytest.raises(StoreUnavailable):
        await blocking
    await database.close()
    assert done == []


async def test_job_of_a_disconnected_client_is_never_run() -> None:
    database, gate, done = thread(), Gate(), list[str]()
    blocking = await begun(database.run("alice", gate))
    left = await begun(database.run("bob", lambda _: done.append("left")))
    left.cancel()
    await asyncio.wait({left})
    gate.is_open.set()
    await blocking
    await database.run("bob", lambda _: done.append("next"))
    await database.close()
    assert done == ["next"]


async def test_a_job_without_an_end_is_stopped_at_its_deadline() -> None:
    def endless(database: RecordDatabase) -> None:
        with database.transaction("DEFERRED") as file:
            file.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n")

    database, done = thread(0.2), ""
    with pytest.raises(StoreUnavailable):
        await database.run("alice", endless)
    while not done:  # the thread runs other jobs as soon as this one is stopped
        with suppress(StoreUnavailable):
            done = await database.run("bob", lambda _: "done")
    assert done == "done"


async def test_exception_of_a_job_is_raised() -> None:
    def fails(database: RecordDatabase) -> None:
        raise InvalidField(None, "no")

    database = thread()
    with pytest.raises(InvalidField):
        await database.run(None, fails)
    await database.close()


async def test_closing_the_database_runs_queued_jobs() -> None:
    database, gate, done = thread(), Gate(), list[str]()
    tasks = [await begun(database.run(None, gate)), await begun(database.run(None, lambda _: done.append("done")))]
    gate.is_open.set()
    await database.close()
    await asyncio.gather(*tasks)
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.run(None, lambda _: None)
    assert done == ["done"]


def test_hanging_disk_does_not_block_the_process() -> None:
    script = """
import asyncio, time
from genai_server.apis.shared.database_thread import DatabaseThread
from genai_server.apis.responses.store_database import RecordDatabase
from genai_server.errors import StoreUnavailable

async def main():
    database = DatabaseThread(RecordDatabase(None, 10, 1000), "test", 0.2)
    try:
        await database.run(None, lambda _: time.sleep(100_000))
    except StoreUnavailable as error:
        print(error.message)
    await database.close()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "the store did not respond within 0.2 s\n"
