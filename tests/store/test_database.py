"""The file of a store and its thread: owners take turns, and no failure blocks other owners or ends the process."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from genai_server.errors import InvalidField, StoreUnavailable
from genai_server.store.database import Database, check_version
from genai_server.timing import Clock
from tests.hand_clock import HandClock

T = TypeVar("T")
pytestmark = pytest.mark.anyio


def prepare(rows: sqlite3.Connection) -> None:
    check_version(rows, {0, 1})
    rows.execute("CREATE TABLE IF NOT EXISTS words (word TEXT NOT NULL)")
    rows.execute("PRAGMA user_version = 1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def made(path: Path, patience: float = 60.0, max_bytes: int = 10**7, clock: Clock = time.monotonic) -> Database:
    return Database(path, prepare, max_bytes, timeout=patience, clock=clock)


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    found = made(path)
    yield found
    await found.close()


def insert(word: str, rows: sqlite3.Connection) -> None:
    rows.execute("INSERT INTO words VALUES (?)", (word,))


def words(rows: sqlite3.Connection) -> list[str]:
    return [word for (word,) in rows.execute("SELECT word FROM words ORDER BY rowid")]


def replaced(path: Path, content: bytes | None) -> bytes:
    """What was in a file before it was overwritten, or removed."""
    before = path.read_bytes() if path.exists() else b""
    path.unlink() if content is None else path.write_bytes(content)
    return before


class Gate:
    """A job that waits until it is opened."""

    def __init__(self) -> None:
        self._is_reached, self._is_open = threading.Event(), threading.Event()
        self.open = self._is_open.set

    def __call__(self, rows: sqlite3.Connection) -> None:
        self._is_reached.set()
        assert self._is_open.wait(60)

    async def blocking(self, database: Database, owner: str | None) -> "asyncio.Task[None]":
        """This job, which the thread of a database has begun."""
        task = await begun(database.read(owner, self))
        await asyncio.to_thread(self._is_reached.wait)
        return task


async def begun(job: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    task = asyncio.ensure_future(job)
    await asyncio.sleep(0)  # it is queued now
    return task


# turns


@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        (1, ["alice 1", "bob 1", "carol 1", "alice 2", "bob 2", "alice 3"]),
        # An owner whose job takes as long as three of the others has its next turn after three of them.
        (3, ["alice 1", "bob 1", "carol 1", "bob 2", "alice 2", "alice 3"]),
    ],
)
async def test_owners_take_turns_by_the_time_of_their_jobs(path: Path, seconds: int, order: list[str]) -> None:
    clock, gate, done = HandClock(), Gate(), list[str]()

    def note(name: str, rows: sqlite3.Connection) -> None:
        done.append(name)
        clock.wait(seconds if name.startswith("alice") else 1)

    database = made(path, clock=clock)
    tasks = [await gate.blocking(database, "dave")]
    for name in ("alice 1", "alice 2", "alice 3", "bob 1", "bob 2", "carol 1"):
        tasks.append(await begun(database.read(name.split()[0], partial(note, name))))
    gate.open()
    await asyncio.gather(*tasks)
    await database.close()
    assert done == order


async def test_a_full_queue_of_one_owner_refuses_no_other(database: Database) -> None:
    gate = Gate()
    tasks = [await gate.blocking(database, "alice")]
    tasks += [await begun(database.read("alice", lambda _: None)) for _ in range(64)]
    with pytest.raises(StoreUnavailable, match="64 accesses with this API key are waiting"):
        await database.read("alice", lambda _: None)
    tasks.append(await begun(database.read("bob", lambda _: None)))
    gate.open()
    await asyncio.gather(*tasks)


async def test_job_queued_too_long_is_never_run(path: Path) -> None:
    database, gate, done = made(path, 0.05), Gate(), list[str]()
    blocking = await begun(database.read("alice", gate))
    with pytest.raises(StoreUnavailable, match=r"within 0\.05 s"):
        await database.read("bob", lambda _: done.append("late"))
    gate.open()
    with pytest.raises(StoreUnavailable):
        await blocking
    await database.close()
    assert done == []


async def test_job_of_a_disconnected_client_is_never_run(database: Database) -> None:
    gate, done = Gate(), list[str]()
    blocking = await begun(database.read("alice", gate))
    left = await begun(database.read("bob", lambda _: done.append("left")))
    left.cancel()
    await asyncio.wait({left})
    gate.open()
    await blocking
    await database.read("bob", lambda _: done.append("next"))
    assert done == ["next"]


async def test_a_job_without_an_end_is_stopped_at_its_deadline(path: Path) -> None:
    def endless(rows: sqlite3.Connection) -> None:
        rows.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n")

    database, done = made(path, 0.2), ""
    with pytest.raises(StoreUnavailable):
        await database.read("alice", endless)
    while not done:  # the thread runs other jobs as soon as this one is stopped
        with suppress(StoreUnavailable):
            done = await database.read("bob", lambda _: "done")
    assert done == "done"


async def test_closing_the_database_runs_queued_jobs(database: Database) -> None:
    gate, done = Gate(), list[str]()
    tasks = [await begun(database.read(None, gate)), await begun(database.read(None, lambda _: done.append("done")))]
    gate.open()
    await database.close()
    await asyncio.gather(*tasks)
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.read(None, lambda _: None)
    assert done == ["done"]


def test_hanging_disk_does_not_block_the_process(tmp_path: Path) -> None:
    script = """
import asyncio, sys, time
from pathlib import Path
from genai_server.errors import StoreUnavailable
from genai_server.store.database import Database

async def main():
    database = Database(Path(sys.argv[1]), lambda rows: time.sleep(100_000), 10**6, timeout=0.2)
    try:
        await database.read(None, lambda rows: None)
    except StoreUnavailable as error:
        print(error.message)
    await database.close()

asyncio.run(main())
"""
    arguments = [sys.executable, "-c", script, str(tmp_path / "store")]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "the store did not respond within 0.2 s\n"


# failures


async def test_a_failed_job_changes_nothing_and_raises_its_error(database: Database) -> None:
    def fails(rows: sqlite3.Connection) -> None:
        insert("a", rows)
        raise InvalidField(None, "no")

    with pytest.raises(InvalidField):
        await database.write(None, fails)
    assert await database.read(None, words) == []


async def test_first_of_several_failures_and_their_end_are_logged(
    database: Database, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    junk = b"no database" * 100
    replaced(path, junk)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="the store store cannot be read or written: file is not a database"):
            await database.write(None, partial(insert, "a"))
    assert replaced(path, None) == junk
    await database.write(None, partial(insert, "a"))
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "INFO"]
    assert caplog.messages[1] == "the store store can be used again"


async def test_a_file_overwritten_while_it_is_open_is_noticed(database: Database, path: Path) -> None:
    first = made(path)
    await first.write(None, partial(insert, "x" * 100_000))
    await first.close()
    await database.read(None, lambda rows: rows.execute("SELECT 1").fetchone())
    replaced(path, os.urandom(100_000))
    with pytest.raises(StoreUnavailable):
        for _ in range(50):
            await database.read(None, words)
            await database.write(None, partial(insert, "y" * 2000))


async def test_full_disk_loses_only_what_does_not_fit(database: Database) -> None:
    await database.write(None, partial(insert, "a"))

    def limit(factor: int, rows: sqlite3.Connection) -> None:
        (pages,) = rows.execute("PRAGMA page_count").fetchone()
        rows.execute(f"PRAGMA max_page_count = {factor * pages}")

    await database.read(None, partial(limit, 1))  # as SQLite itself reports ENOSPC
    connection = database._connection
    with pytest.raises(StoreUnavailable, match="full"):
        await database.write(None, partial(insert, "x" * 100_000))
    # A full disk would not let it be opened again.
    assert database._connection is connection
    assert await database.read(None, words) == ["a"]
    await database.read(None, partial(limit, 100))
    await database.write(None, partial(insert, "x" * 100_000))


async def test_what_a_read_notes_need_not_fit(database: Database) -> None:
    def read(rows: sqlite3.Connection) -> list[str]:
        found = words(rows)
        with suppress(sqlite3.Error):
            insert("x" * 100_000, rows)
        return found

    await database.write(None, partial(insert, "a"))
    await database.read(None, lambda rows: rows.execute("PRAGMA max_page_count = 1"))
    assert await database.read(None, read) == ["a"]
    assert await database.read(None, words) == ["a"]


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No such file or directory|cannot find"):
        await made(tmp_path / "nowhere" / "store").read(None, words)


# the file


async def test_two_processes_share_a_file(database: Database, path: Path) -> None:
    other = made(path)
    await other.write(None, partial(insert, "a"))
    assert await database.read(None, words) == ["a"]
    await other.close()


async def test_a_file_has_a_largest_size(path: Path) -> None:
    database = made(path, max_bytes=200_000)
    for _ in range(5):
        await database.write(None, partial(insert, "x" * 20_000))
    with pytest.raises(StoreUnavailable, match="full"):
        await database.write(None, partial(insert, "x" * 100_000))
    await database.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such bits")
async def test_others_cannot_read_the_file(database: Database, path: Path) -> None:
    await database.write(None, partial(insert, "a"))
    assert {found.stat().st_mode & 0o777 for found in path.parent.iterdir()} == {0o600}


async def test_durable_jobs_are_synchronized_with_the_disk(database: Database) -> None:
    def level(rows: sqlite3.Connection) -> int:
        found: int = rows.execute("PRAGMA synchronous").fetchone()[0]
        return found

    normal, full = 1, 2
    assert await database.write(None, level, is_durable=True) == full
    assert await database.write(None, level) == normal


async def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 99")
    database = made(path)
    with pytest.raises(StoreUnavailable, match="it has version 99, but this server supports version 1"):
        await database.read(None, words)
    await database.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() == (0,)
