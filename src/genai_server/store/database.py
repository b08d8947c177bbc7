"""The store: an SQLite file that all API processes of a server share, with stored responses, conversations, files and
batches. `Database` is the thread that accesses it; `open_store` opens it, creates its tables or migrates those of
version 0.2.0.

The thread runs one job at a time, each in a transaction and within a time limit. Owners (API keys) take turns by the
seconds that their jobs have taken, so that an owner's jobs delay those of others by at most one job.
"""

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from genai_server.errors import StoreUnavailable
from genai_server.fair_queue import FairQueue
from genai_server.timing import Clock

log = logging.getLogger(__name__)

# Seconds that a job may take, including its wait for other jobs. A request waits so long for a disk that hangs.
TIMEOUT = 10.0
_PAGE_BYTES = 4096
# Waiting jobs of one owner; each may hold a response.
_MAX_WAITING = 64
# Seconds to wait while another process writes.
_BUSY_TIMEOUT = 1.0
# SQLite checks the deadline of a job each time it has run this number of its virtual machine's instructions.
_CHECK_EVERY = 10_000

JsonObject = dict[str, Any]
T = TypeVar("T")
# What a job does in its transaction.
Do = Callable[[sqlite3.Connection], T]
VERSION = 5
# The version of response stores of 0.2.0, which had the tables of responses only.
_RESPONSES_ONLY = 4
# Versions that can be opened; 0 is a new file. Others are not changed.
KNOWN_VERSIONS = frozenset({0, _RESPONSES_ONLY, VERSION})
# The state of files and batches in GENAI_FILES_DIR as 0.2.0 wrote it, and its version.
INDEX_NAME = "index"
_INDEX_VERSION = 1
# Database size in bytes for each byte of records. Indexes and partly filled pages take up to 5 bytes if items are
# small. A file that is full before its records reach their limit would never accept another one.
_SIZE_FACTOR = 8
# Database size for files and batches, of which the limits of an owner are a small part; and without them.
_FILES_BYTES = 1024**3
_MIN_BYTES = 1024**2

# Triggers maintain the sums in `owners`, so that checking the limits does not read all records.
_RESPONSES = """
    CREATE TABLE records (
        key INTEGER PRIMARY KEY, owner TEXT NOT NULL, object TEXT NOT NULL, id TEXT NOT NULL, used INTEGER NOT NULL,
        value BLOB NOT NULL, size INTEGER NOT NULL, run TEXT NOT NULL, pid INTEGER NOT NULL, request TEXT NOT NULL,
        is_cancelled INTEGER NOT NULL DEFAULT 0, UNIQUE (owner, id)
    );
    CREATE INDEX records_by_use ON records (owner, used);
    CREATE TABLE parts (
        record INTEGER NOT NULL, kind INTEGER NOT NULL, place INTEGER NOT NULL, owner TEXT NOT NULL, id TEXT,
        json BLOB NOT NULL
    );
    CREATE UNIQUE INDEX parts_by_place ON parts (record, kind, place);
    CREATE INDEX parts_by_id ON parts (owner, id, record, kind, place) WHERE id IS NOT NULL;
    CREATE TABLE owners (owner TEXT PRIMARY KEY, number INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TRIGGER record_added AFTER INSERT ON records BEGIN
        INSERT OR IGNORE INTO owners VALUES (new.owner, 0, 0);
        UPDATE owners SET number = number + 1, size = size + new.size WHERE owner = new.owner;
    END;
    CREATE TRIGGER record_resized AFTER UPDATE OF size ON records BEGIN
        UPDATE owners SET size = size + new.size - old.size WHERE owner = new.owner;
    END;
    CREATE TRIGGER record_removed AFTER DELETE ON records BEGIN
        DELETE FROM parts WHERE record = old.key;
        UPDATE owners SET number = number - 1, size = size - old.size WHERE owner = old.owner;
        DELETE FROM owners WHERE owner = old.owner AND number = 0;
    END;
"""
_FILES = """
    CREATE TABLE files (
        key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created INTEGER NOT NULL,
        expires INTEGER, name TEXT NOT NULL, purpose TEXT NOT NULL, size INTEGER NOT NULL, writer TEXT NOT NULL
    );
    CREATE INDEX files_by_owner ON files (owner, key);
    CREATE INDEX files_by_expiry ON files (expires) WHERE expires IS NOT NULL;
    CREATE TABLE batches (
        key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, is_open INTEGER NOT NULL,
        input TEXT NOT NULL, output TEXT NOT NULL, errors TEXT NOT NULL, keeps INTEGER NOT NULL, value BLOB NOT NULL
    );
    CREATE INDEX batches_by_owner ON batches (owner, key);
    CREATE INDEX open_batches ON batches (key) WHERE is_open;
"""
_SCRIPTS = {0: _RESPONSES + _FILES, _RESPONSES_ONLY: _FILES, VERSION: ""}
# Rows that are there already were taken over before a crash.
_TAKE_OVER = """
    INSERT OR IGNORE INTO files (id, owner, created, expires, name, purpose, size, writer)
        SELECT id, owner, created, expires, name, purpose, size, writer FROM old.files ORDER BY key;
    INSERT OR IGNORE INTO batches (id, owner, is_open, input, output, errors, keeps, value)
        SELECT id, owner, is_open, input, output, errors, keeps, value FROM old.batches ORDER BY key;
"""


@dataclass
class _Job:
    do: Callable[[sqlite3.Connection], Any]
    # DEFERRED or IMMEDIATE, for jobs that read or write.
    kind: str
    is_durable: bool
    # In seconds of time.monotonic.
    deadline: float
    done: "Future[Any]"


class Database:
    """Runs jobs on an SQLite file, in a thread of its own. A job is a function that gets the connection. Each API
    process has one Database for the store, and must close it.

    `prepare` creates the tables of a new file or migrates those of an older version, and raises ValueError for an
    unknown version. The first job opens the file; after a failure, the next job opens it again. The file never grows
    beyond `max_bytes` bytes. `timeout` is the time limit of a job in seconds.

    Only the event loop may call `read`, `write` and `close`. The thread is a daemon thread, because a disk that hangs
    may block it forever.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[sqlite3.Connection], None],
        max_bytes: int,
        *,
        timeout: float = TIMEOUT,
        clock: Clock = time.monotonic,
    ) -> None:
        self._path = path
        self._prepare = prepare
        self._max_pages = max(1, max_bytes // _PAGE_BYTES)
        self._timeout = timeout
        # Counts the seconds of jobs.
        self._clock = clock
        # Whether the disk has failed the latest job.
        self._is_failing = False
        # Guards the following fields. Never held while a job runs.
        self._changed = threading.Condition()
        # Waiting jobs keyed by owner; no queue is empty.
        self._queues: dict[str, deque[_Job]] = {}
        self._turns = FairQueue()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        # Done when the thread has closed the file.
        self._ended: Future[None] = Future()
        # The following fields belong to the thread.
        self._connection: sqlite3.Connection | None = None
        self._deadline = float("inf")

    async def read(self, owner: str | None, do: Do[T]) -> T:
        """Run the job `do`, which only reads, and return its result. `owner` is the API key whose turn the job uses;
        None without API keys.

        Raises the job's errors, and StoreUnavailable if the file cannot be read, if the job does not end within the
        time limit, or if too many jobs of this owner wait.
        """
        return await self._run(owner, do, "DEFERRED")

    async def write(self, owner: str | None, do: Do[T], *, is_durable: bool = False) -> T:
        """Run the job `do`, which may write, and return its result. If the job raises an error, its changes are undone.
        `owner` is the API key whose turn the job uses; None without API keys.

        A power failure may undo the most recent jobs. If `is_durable`, it can undo neither this job nor any before it.
        Raises the same errors as `read`. After StoreUnavailable because of the time limit, the job may still have been
        completed.
        """
        return await self._run(owner, do, "IMMEDIATE", is_durable=is_durable)

    async def close(self) -> None:
        """Run the waiting jobs and close the file. Waits for at most the time limit of a job."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout):
                    await asyncio.wrap_future(self._ended)

    @contextmanager
    def transaction(self, kind: str, *, is_durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Return a context manager that runs its block in a transaction, whose changes are made completely or not at
        all. It blocks; only the database's own thread may use it.

        `kind` is DEFERRED or IMMEDIATE, as in SQLite. If `is_durable`, a power failure after the block cannot undo the
        changes. Raises StoreUnavailable if the file cannot be read or written.
        """
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            self._connection.execute(f"BEGIN {kind}")
            yield self._connection
            self._commit(self._connection, kind)
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
            self._roll_back()
            # Another file may have its place by the next job. On a full disk it would not open, and can still be read.
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_FULL:
                self.disconnect()
            raise StoreUnavailable(f"the store {self._path.name} cannot be read or written: {error}") from None
        except BaseException:
            self._roll_back()
            raise

    def disconnect(self) -> None:
        """Close the SQLite file; the next transaction opens it again. Only the database's own thread may call this
        method.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    async def _run(self, owner: str | None, do: Do[T], kind: str, *, is_durable: bool = False) -> T:
        done: Future[T] = Future()
        self._submit(owner or "", _Job(do, kind, is_durable, time.monotonic() + self._timeout, done))
        try:
            async with asyncio.timeout(self._timeout):
                result = await asyncio.wrap_future(done)
        except StoreUnavailable as error:
            failure = error
        except TimeoutError:
            failure = StoreUnavailable(f"the store did not respond within {self._timeout:g} s")
        else:
            if self._is_failing:
                log.info("the store %s can be used again", self._path.name)
            self._is_failing = False
            return result
        if not self._is_failing:  # the first of consecutive failures
            log.warning("%s", failure.message)
        self._is_failing = True
        raise failure from None

    def _submit(self, owner: str, job: _Job) -> None:
        with self._changed:
            if self._is_closed:
                raise StoreUnavailable("the store is closed")
            if owner not in self._queues:
                self._turns.arrive(owner, self._queues)
                self._queues[owner] = deque()
            queue = self._queues[owner]
            if len(queue) >= _MAX_WAITING:
                raise StoreUnavailable(f"{_MAX_WAITING} accesses with this API key are waiting for the store")
            queue.append(job)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"store {self._path.name}", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        self._ended.set_running_or_notify_cancel()  # from now on `close` cannot cancel it
        while (next_job := self._next()) is not None:
            owner, job = next_job
            began = self._clock()
            # False if the request has stopped waiting for the job.
            if job.done.set_running_or_notify_cancel():
                self._do(job)
            with self._changed:
                self._turns.serve(owner, self._clock() - began)
                if owner not in self._queues:
                    self._turns.leave(owner, self._queues)
        self.disconnect()
        self._ended.set_result(None)

    def _next(self) -> tuple[str, _Job] | None:
        """Wait for a job, remove it from its queue and return it with its owner (an API key): the next job of the owner
        whose turn it is. Returns None when the database is being closed and no job is left.
        """
        with self._changed:
            while not self._queues:
                if self._is_closed:
                    return None
                self._changed.wait()
            owner = min(self._queues, key=self._turns.turn)
            queue = self._queues[owner]
            job = queue.popleft()
            if not queue:
                del self._queues[owner]
            return owner, job

    def _do(self, job: _Job) -> None:
        self._deadline = job.deadline
        try:
            with self.transaction(job.kind, is_durable=job.is_durable) as rows:
                result = job.do(rows)
        except BaseException as error:
            job.done.set_exception(error)
        else:
            job.done.set_result(result)

    def _commit(self, connection: sqlite3.Connection, kind: str) -> None:
        """Commit the current transaction of `connection`, whose kind is DEFERRED for jobs that only read, and IMMEDIATE
        for others.

        A DEFERRED transaction changes only the time at which a record was last used, so an error is ignored for it.
        """
        try:
            if connection.in_transaction:
                connection.execute("COMMIT")
        except sqlite3.Error:
            if kind != "DEFERRED":
                raise
            self._roll_back()

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _connect(self) -> sqlite3.Connection:
        # What clients have sent may be read by the server's user only.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        rows = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, uri=True
        )
        try:
            rows.execute("PRAGMA journal_mode = WAL")
            rows.execute("PRAGMA synchronous = FULL")
            rows.execute("PRAGMA secure_delete = ON")
            rows.execute(f"PRAGMA max_page_count = {self._max_pages}")
            self._prepare(rows)
            # Set after `_prepare`, because migrating an old file may exceed the deadline, once.
            rows.set_progress_handler(lambda: time.monotonic() > self._deadline, _CHECK_EVERY)
        except BaseException:
            rows.close()
            raise
        return rows


def check_version(rows: sqlite3.Connection, accepted: Set[int]) -> int:
    """Return the version of the database file behind the connection `rows`; 0 if the file is new. Raises ValueError if
    the version is not in `accepted`.
    """
    (version,) = rows.execute("PRAGMA user_version").fetchone()
    if version not in accepted:
        supported = sorted(accepted - {0})
        versions = f"version{'s' if len(supported) > 1 else ''} {' and '.join(map(str, supported))}"
        raise ValueError(f"it has version {version}, but this server supports {versions}")
    return int(version)


def why_unusable(path: Path, accepted: Set[int]) -> str | None:
    """Return, as text for operators, why the server could not use the database file at this path; None if it could. The
    file is not changed.

    `accepted` are the versions that the server can open.
    """
    try:
        with TemporaryFile(dir=path.parent):  # SQLite has files of its own beside it
            pass
        if not path.exists():
            return None
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT, isolation_level=None)) as rows:
            check_version(rows, accepted)
            rows.execute("BEGIN IMMEDIATE")
            rows.execute("ROLLBACK")
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"cannot be written: {(error.strerror or str(error)).lower()}"
    except sqlite3.Error as error:
        is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return None if is_busy else f"cannot be used: {error}"  # another server writes to it now
    return None


def statements(script: str) -> Iterator[str]:
    """Yield the single statements of an SQL script. They are run one by one, because sqlite3's own `executescript`
    commits the transaction.
    """
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def open_store(path: Path, record_bytes: int, files_dir: Path | None = None) -> Database:
    """Return the Database for the store in the file at `path`. `record_bytes` is the limit of all stored responses and
    conversations together, in bytes, from which the maximum size of the file is derived.

    `files_dir` is the folder for files and batches, or None; version 0.2.0 may have left a file there that lists them.
    The file is opened by the first job.
    """
    max_bytes = _SIZE_FACTOR * record_bytes + (_MIN_BYTES if files_dir is None else _FILES_BYTES)
    return Database(path, partial(prepare, index=None if files_dir is None else files_dir / INDEX_NAME), max_bytes)


def prepare(rows: sqlite3.Connection, index: Path | None = None) -> None:
    """Create the tables of the store in a new file, or migrate the tables of version 0.2.0. `rows` is the connection to
    the file.

    The rows of `index`, the file in which version 0.2.0 kept files and batches, are moved into the store, and that file
    is removed. Raises ValueError for a file of another version, which is not changed.
    """
    has_index = index is not None and index.exists()
    if index is not None and has_index:
        rows.execute("ATTACH ? AS old", (f"{index.absolute().as_uri()}?mode=rw",))
        (version,) = rows.execute("PRAGMA old.user_version").fetchone()
        if version != _INDEX_VERSION:
            raise ValueError(f"{index} has version {version}, but this server supports version {_INDEX_VERSION}")
    rows.execute("BEGIN IMMEDIATE")
    version = check_version(rows, KNOWN_VERSIONS)
    for statement in statements(_SCRIPTS[version] + (_TAKE_OVER if has_index else "")):
        rows.execute(statement)
    rows.execute(f"PRAGMA user_version = {VERSION}")
    rows.execute("COMMIT")
    if index is not None and has_index:
        rows.execute("DETACH old")
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):  # another process has removed it
                index.with_name(index.name + suffix).unlink()
