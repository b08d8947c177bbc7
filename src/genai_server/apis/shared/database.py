"""An SQLite database, in memory or in a file that survives restarts and that all API processes share."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from genai_server.errors import StoreUnavailable

PAGE_BYTES = 4096
# Seconds to wait while another process writes.
_BUSY_TIMEOUT = 1.0
# SQLite instructions between two checks of the deadline.
_CHECK_EVERY = 10_000


class Database:
    """Opens the database at the first access, and again after each failure.

    Belongs to one thread. All methods block. A transaction raises StoreUnavailable if the file cannot be read or
    written, or if the deadline has passed; the next one tries again.
    """

    def __init__(
        self,
        path: Path | None,
        max_pages: int,
        prepare: Callable[[sqlite3.Connection], None],
        what: str,
        *,
        is_durable: bool = False,
    ) -> None:
        # None for a database in memory.
        self._path = path
        # Maximum size in pages of PAGE_BYTES.
        self._max_pages = max_pages
        # Creates the tables, or migrates those of an older version. Raises ValueError for a newer version.
        self._prepare = prepare
        # What is stored, for errors.
        self._what = what
        # Whether a power failure loses no transaction; otherwise it may lose the most recent ones.
        self._is_durable = is_durable
        # When to abort the current call, in seconds of time.monotonic.
        self.deadline = float("inf")
        self._open: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction: all of its changes are made, or none. `kind` is DEFERRED or IMMEDIATE."""
        try:
            if self._open is None:
                self._open = self._connect()
            self._open.execute(f"BEGIN {kind}")
            yield self._open
            self._open.execute("COMMIT")
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
            self._roll_back()
            # Another file may have its place by the next call. On a full disk it would not open, and can still be read.
            if self._path is not None and getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_FULL:
                self.close()
            name = "memory" if self._path is None else self._path.name
            raise StoreUnavailable(f"{self._what} cannot be stored in {name}: {error}") from None
        except BaseException:
            self._roll_back()
            raise

    def close(self) -> None:
        """Close the database."""
        file, self._open = self._open, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _roll_back(self) -> None:
        if self._open is not None and self._open.in_transaction:
            with suppress(sqlite3.Error):
                self._open.execute("ROLLBACK")

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:  # what clients have sent may be read by the server's user only
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        file = sqlite3.connect(
            self._path or ":memory:", timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        try:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute(f"PRAGMA synchronous = {'FULL' if self._is_durable else 'NORMAL'}")
            file.execute("PRAGMA secure_delete = ON")
            file.execute(f"PRAGMA max_page_count = {self._max_pages}")
            self._prepare(file)
            # Set after `_prepare`, because migrating an old file may exceed the deadline, once.
            file.set_progress_handler(lambda: time.monotonic() > self.deadline, _CHECK_EVERY)
        except BaseException:
            file.close()
            raise
        return file


def why_unusable(path: Path, version: int) -> str | None:
    """Why no database of this version can be written at a path; None if one can. Creates nothing, changes nothing."""
    try:
        with TemporaryFile(dir=path.parent):  # SQLite has files of its own beside it
            pass
        if not path.exists():
            return None
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT, isolation_level=None)) as file:
            (found,) = file.execute("PRAGMA user_version").fetchone()
            if found > version:
                return f"it has version {found}, but this server supports version {version}"
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
    except OSError as error:
        return f"cannot be written: {(error.strerror or str(error)).lower()}"
    except sqlite3.Error as error:
        is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return None if is_busy else f"cannot be used: {error}"  # another server writes to it now
    return None


def statements(script: str) -> Iterator[str]:
    """The statements of a script. `executescript` would commit the transaction."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
