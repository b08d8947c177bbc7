"""Records in a file of SQLite, so that they survive a restart and all API processes share them."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from genai_server.api.generation.records import Record, too_large
from genai_server.errors import StoreUnavailable
from genai_server.openai_api.schemas.base import JsonObject

# Each brings a file of the version before it, which is its place in the list, to the next one. A file of an unknown
# version is left as it is.
_STEPS = (
    # By rows of `items` an item is found without reading all records.
    """
    CREATE TABLE records (
        owner TEXT NOT NULL, id TEXT NOT NULL, size INTEGER NOT NULL, used INTEGER NOT NULL, json BLOB NOT NULL,
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX records_by_use ON records (owner, used, size);
    CREATE TABLE items (
        owner TEXT NOT NULL, item TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (owner, item, record)
    ) WITHOUT ROWID;
    CREATE INDEX items_by_record ON items (owner, record);
    """,
    # Sums, so that nothing reads all records to see whether there is room. SQLite keeps them.
    """
    CREATE TABLE owners (owner TEXT PRIMARY KEY, number INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO owners SELECT owner, COUNT(*), SUM(size) FROM records GROUP BY owner;
    CREATE TRIGGER record_added AFTER INSERT ON records BEGIN
        INSERT OR IGNORE INTO owners VALUES (new.owner, 0, 0);
        UPDATE owners SET number = number + 1, size = size + new.size WHERE owner = new.owner;
    END;
    CREATE TRIGGER record_removed AFTER DELETE ON records BEGIN
        UPDATE owners SET number = number - 1, size = size - old.size WHERE owner = old.owner;
        DELETE FROM owners WHERE owner = old.owner AND number = 0;
    END;
    """,
    # Marks of responses that were deleted while they ran. No record evicts them.
    """
    CREATE TABLE deleted (
        owner TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (owner, id)
    ) WITHOUT ROWID;
    """,
)
# Nanoseconds after which a mark may go: no response runs as long (GENAI_REQUEST_TIMEOUT).
_LONGEST_RUN = 2 * 86_400 * 10**9
# Seconds to wait for another process that writes.
_BUSY = 1.0
_PAGE = 4096
# Most bytes of the file for each byte of records. Indices and pages that are not full take up to 5 where items are
# small; a file that is full before its records reach their limits would take none for ever.
_SPARE = 8
_LEAST_PAGES = 256


class RecordFile:
    """Records within limits, as MemoryRecords has them. All methods block, and raise StoreUnavailable if the file
    cannot be read or written; the next call tries again.
    """

    def __init__(self, path: Path, size: int, num_bytes: int) -> None:
        self._path = path
        # Most records, and most bytes of them together.
        self._size = size
        self._most_bytes = num_bytes
        self._open: sqlite3.Connection | None = None

    def put(self, record: Record) -> bool:
        """Store a record in place of the one with its id; returns whether it is within the limits alone.

        A response that another process has deleted while it ran is not stored.
        """
        text = record.to_json()
        with self._writing() as file:
            if _unmark(file, record.owner or "", record.id):
                return True
            self._put(file, record, text)
        return len(text) <= self._most_bytes

    def get(self, id: str, owner: str | None = None) -> Record | None:
        """A record of this owner."""
        with self._reading() as file:
            found = _find(file, id, owner)
            # A disk that is full, or can only be read, ends no reading.
            with suppress(sqlite3.Error):
                file.execute("UPDATE records SET used = ? WHERE owner = ? AND id = ?", (_now(), owner or "", id))
        return found

    def change(self, id: str, owner: str | None, change: Callable[[Record], Record]) -> Record | None:
        """Replace a record by the changed one, and return that; None if there is no such record.

        Raises InvalidField if it would be larger than the limit, and whatever `change` raises.
        """
        with self._writing() as file:
            record = _find(file, id, owner)
            if record is None:
                return None
            changed = change(record)
            text = changed.to_json()
            if len(text) > self._most_bytes:
                raise too_large(changed, len(text), self._most_bytes)
            self._put(file, changed, text)
        return changed

    def delete(self, id: str, owner: str | None = None) -> bool:
        """Remove a record; returns whether it was there.

        A mark stays in the place of a running response until the process that runs it stores or removes it, too.
        """
        with self._writing() as file:
            record = _find(file, id, owner)
            _delete(file, owner or "", id)
            if record is not None and record.is_running:
                file.execute("DELETE FROM deleted WHERE at < ?", (_now() - _LONGEST_RUN,))
                file.execute("INSERT INTO deleted VALUES (?, ?, ?)", (owner or "", id, _now()))
            else:
                _unmark(file, owner or "", id)
        return record is not None

    def find_items(self, ids: Set[str], owner: str | None = None) -> dict[str, JsonObject]:
        """The items of the owner's records that have these ids, by id; unknown ids are left out."""
        found: dict[str, JsonObject] = {}
        with self._reading() as file:
            for item in ids:
                rows = file.execute(
                    "SELECT record FROM items WHERE owner = ? AND item = ? LIMIT 1", (owner or "", item)
                ).fetchall()
                record = _find(file, rows[0][0], owner) if rows else None
                if record is not None:
                    found |= {one["id"]: one for one in record.all_items if one["id"] == item}
        return found

    def close(self) -> None:
        """Close the file."""
        file, self._open = self._open, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _put(self, file: sqlite3.Connection, record: Record, text: bytes) -> None:
        owner = record.owner or ""
        _delete(file, owner, record.id)
        if len(text) > self._most_bytes or not self._size:
            return
        file.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", (owner, record.id, len(text), _now(), text))
        items = {item["id"] for item in record.all_items}
        file.executemany("INSERT INTO items VALUES (?, ?, ?)", [(owner, item, record.id) for item in items])
        self._make_room(file, owner)

    def _make_room(self, file: sqlite3.Connection, newcomer: str) -> None:
        """Evict as MemoryRecords does."""
        for measure, most in (("number", self._size), ("size", self._most_bytes)):
            most_used = f"SELECT owner FROM owners ORDER BY {measure} DESC, owner = ? LIMIT 1"
            while file.execute(f"SELECT SUM({measure}) FROM owners").fetchone()[0] > most:
                (owner,) = file.execute(most_used, (newcomer,)).fetchone()
                (id,) = file.execute(
                    "SELECT id FROM records WHERE owner = ? ORDER BY used LIMIT 1", (owner,)
                ).fetchone()
                _delete(file, owner, id)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """All that the block does, or nothing."""
        with self._reading() as file:
            file.execute("BEGIN IMMEDIATE")
            yield file
            file.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._open is None:
                self._open = self._connect()
            yield self._open
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
            self.close()  # which undoes what was not committed; the file may be another one next time
            raise StoreUnavailable(f"responses cannot be stored in {self._path.name}: {error}") from None
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # It holds what clients have said.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        file = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            file.execute("PRAGMA journal_mode = WAL")
            # A power failure may lose the last records, and no others.
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute("PRAGMA secure_delete = ON")
            pages = max(_LEAST_PAGES, _SPARE * self._most_bytes // _PAGE)
            file.execute(f"PRAGMA max_page_count = {pages}")
            _prepare(file)
        except BaseException:
            file.close()
            raise
        return file


def _prepare(file: sqlite3.Connection) -> None:
    file.execute("BEGIN IMMEDIATE")
    (version,) = file.execute("PRAGMA user_version").fetchone()
    if version > len(_STEPS):
        raise ValueError(f"it has version {version}, and this server knows version {len(_STEPS)}")
    for statement in _statements("".join(_STEPS[version:])):
        file.execute(statement)
    file.execute(f"PRAGMA user_version = {len(_STEPS)}")
    file.execute("COMMIT")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, for `executescript` would end the transaction."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _find(file: sqlite3.Connection, id: str, owner: str | None) -> Record | None:
    row = file.execute("SELECT json FROM records WHERE owner = ? AND id = ?", (owner or "", id)).fetchone()
    return None if row is None else Record.from_json(row[0])


def _delete(file: sqlite3.Connection, owner: str, id: str) -> bool:
    file.execute("DELETE FROM items WHERE owner = ? AND record = ?", (owner, id))
    return file.execute("DELETE FROM records WHERE owner = ? AND id = ?", (owner, id)).rowcount > 0


def _unmark(file: sqlite3.Connection, owner: str, id: str) -> bool:
    """Remove the mark of a deleted response; returns whether there was one."""
    return file.execute("DELETE FROM deleted WHERE owner = ? AND id = ?", (owner, id)).rowcount > 0


def _now() -> int:
    return time.time_ns()
