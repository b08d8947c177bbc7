"""Records in a database of SQLite: in memory, or in a file, which survives a restart and which all API processes share.

Items are rows with an index, so that each access reads and writes what it returns or is given, and no whole record.
"""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from genai_server.api.generation.record_schema import prepare
from genai_server.api.generation.records import (
    EVENT,
    ITEM,
    OUTPUT,
    EncodedRecord,
    Page,
    Row,
    StoredRecord,
    size_of,
    to_json,
)
from genai_server.errors import InvalidField, StoreUnavailable
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.schemas.responses import InputItemsParameters
from genai_server.quoted_values import quoted

# Most items and events of a record: to remove a record is one transaction.
MAX_ROWS = 32_768
# Bytes after which a page of items, or of events, ends before it has as many as were asked for.
MAX_PAGE_BYTES = 4 * 1024 * 1024
_MAX_PAGE_EVENTS = 1000
# Nanoseconds that a running response is evicted later than an ended one: none runs as long (GENAI_REQUEST_TIMEOUT).
_LONGEST_RUN = 2 * 86_400 * 10**9
# Seconds to wait for another process that writes.
_BUSY = 1.0
# SQLite's instructions between two looks at the deadline.
_LOOK_EVERY = 10_000
_PAGE = 4096
# Most bytes of the database for each byte of records. Indices and pages that are not full take up to 5 where items are
# small; a file that is full before its records reach their limits would take none for ever.
_SPARE = 8
_LEAST_PAGES = 256

T = TypeVar("T")


class Key(NamedTuple):
    """Names a record."""

    object: Literal["response", "conversation"]
    id: str
    # None without keys.
    owner: str | None


class History(NamedTuple):
    """Items of a record, with a response's output, as JSON."""

    items: list[bytes]
    # The first one of all; None if `items` begins with it.
    first: bytes | None = None


class RecordDatabase:
    """Records within limits, visible to their owners only.

    Beyond a limit, the owner with the most loses the least recently used record, so no owner evicts others within an
    equal share. Items that several records share count for each of them.

    Belongs to one thread. All methods block, and raise StoreUnavailable if the file cannot be read or written, or if
    the deadline is over; the next call tries again.
    """

    def __init__(self, path: Path | None, size: int, num_bytes: int) -> None:
        # None for one in memory.
        self._path = path
        # Most records, and most bytes of them together.
        self._size = size
        self._max_bytes = num_bytes
        # When a call ends although it has not done its work, in seconds of time.monotonic.
        self.deadline = float("inf")
        self._open: sqlite3.Connection | None = None

    def put(self, encoded: EncodedRecord) -> None:
        """Store a record in place of the one with its id; call `evict` afterwards. Raises InvalidField for one that is
        larger than the limits alone.
        """
        record = encoded.record
        self._check(record.id, encoded.size, len(encoded.rows))
        with self._transaction("IMMEDIATE") as file:
            owner, used = record.owner or "", _now() + (_LONGEST_RUN if record.run else 0)
            file.execute("DELETE FROM records WHERE owner = ? AND id = ?", (owner, record.id))
            row = (owner, record.value["object"], record.id, used, encoded.head, encoded.size)
            added = file.execute(
                "INSERT INTO records (owner, object, id, used, value, size, run, pid, request)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, record.run, record.pid, record.request),
            )
            assert added.lastrowid is not None
            _add(file, added.lastrowid, owner, encoded.rows)

    def complete(self, encoded: EncodedRecord) -> bool:
        """Give a stored running response its end; call `evict` afterwards. Returns whether it was still there: another
        process may have deleted it.

        Raises InvalidField if it would be larger than the limits alone.
        """
        record, rows = encoded.record, [row for row in encoded.rows if row.kind != ITEM]
        self._check(record.id, encoded.size, len(encoded.rows))
        with self._transaction("IMMEDIATE") as file:
            key = _find(file, Key("response", record.id, record.owner))
            if key is None:
                return False
            file.execute(
                "UPDATE records SET value = ?, size = ?, used = ?, run = '', pid = 0, request = '' WHERE key = ?",
                (encoded.head, encoded.size, _now(), key),
            )
            file.execute("DELETE FROM parts WHERE record = ? AND kind != ?", (key, ITEM))
            _add(file, key, record.owner or "", rows)
        return True

    def evict(self, newcomer: str | None) -> str | None:
        """Remove one record if the limits are exceeded, and return its id; None if they are not.

        One call removes one record, so that others have their turns between two calls.
        """
        owner = newcomer or ""
        with self._transaction("IMMEDIATE") as file:
            for measure, most in (("number", self._size), ("size", self._max_bytes)):
                if (file.execute(f"SELECT SUM({measure}) FROM owners").fetchone()[0] or 0) > most:
                    (loser,) = file.execute(
                        f"SELECT owner FROM owners ORDER BY {measure} DESC, owner = ? LIMIT 1", (owner,)
                    ).fetchone()
                    key, id = file.execute(
                        "SELECT key, id FROM records WHERE owner = ? ORDER BY used LIMIT 1", (loser,)
                    ).fetchone()
                    file.execute("DELETE FROM records WHERE key = ?", (key,))
                    return str(id)
        return None

    def get(self, key: Key) -> StoredRecord | None:
        """A record without its items."""
        return self._read(key, lambda file, found: _stored(file, found, key.owner))

    def page(self, key: Key, query: InputItemsParameters) -> Page | None:
        """A page of a record's items, output left out; None if there is no such record.

        Raises InvalidField for an `after` that is no item of it.
        """

        def read(file: sqlite3.Connection, record: int) -> Page:
            is_up = query.order == "asc"
            start = -1 if is_up else 2**62
            if query.after is not None:
                place = _place(file, record, key.owner, query.after)
                if place is None:
                    raise no_such_item(query.after)
                start = place
            rows = file.execute(
                f"SELECT id, json FROM parts WHERE record = ? AND kind = ? AND place {'>' if is_up else '<'} ?"
                f" ORDER BY place {query.order} LIMIT ?",
                (record, ITEM, start, query.limit + 1),
            )
            items: list[tuple[str, JsonObject | msgspec.Raw]] = []
            size = 0
            for id, part in rows:
                if len(items) == query.limit or (items and size + len(part) > MAX_PAGE_BYTES):
                    return Page(items, has_more=True)
                items.append((id, msgspec.Raw(part)))
                size += len(part)
            return Page(items, has_more=False)

        return self._read(key, read)

    def item(self, key: Key, id: str) -> bytes | None:
        """One item of a record as JSON; None if there is no such record or no such item."""

        def read(file: sqlite3.Connection, record: int) -> bytes | None:
            place = _place(file, record, key.owner, id)
            sql = "SELECT json FROM parts WHERE record = ? AND kind = ? AND place = ?"
            found: bytes | None = None
            if place is not None:
                (found,) = file.execute(sql, (record, ITEM, place)).fetchone()
            return found

        return self._read(key, read)

    def history(self, key: Key, max_bytes: int, *, is_shortened: bool = False) -> History | None:
        """A record's items with a response's output; None if there is no such record.

        Of more than `max_bytes` only the newest, half as many bytes, and the first with `is_shortened`, and else
        InvalidField.
        """

        def read(file: sqlite3.Connection, record: int) -> History:
            sql = "SELECT json FROM parts WHERE record = ? AND kind IN (?, ?) ORDER BY kind {0}, place {0}"
            items, size, num_newest = [], 0, 0
            for (part,) in file.execute(sql.format("DESC"), (record, OUTPUT, ITEM)):
                size += len(part)
                if size > max_bytes:
                    break
                items.append(part)
                if size <= max_bytes // 2:
                    num_newest = len(items)
            else:
                return History(items[::-1])
            if not is_shortened:
                raise InvalidField(
                    f"{quoted(key.id)} has more than the {max_bytes} bytes of items that a request may continue "
                    "(8 times GENAI_MAX_BODY_BYTES)",
                    param=None,
                )
            (first,) = file.execute(f"{sql.format('')} LIMIT 1", (record, OUTPUT, ITEM)).fetchone()
            return History(items[:num_newest][::-1], first)

        return self._read(key, read)

    def events(self, key: Key, after: int) -> list[bytes] | None:
        """The next events of a response's stream behind the one with this number; None if there is no such record."""

        def read(file: sqlite3.Connection, record: int) -> list[bytes]:
            sql = "SELECT json FROM parts WHERE record = ? AND kind = ? AND place > ? ORDER BY place LIMIT ?"
            events, size = [], 0
            for (event,) in file.execute(sql, (record, EVENT, after, _MAX_PAGE_EVENTS)):
                events.append(event)
                size += len(event)
                if size > MAX_PAGE_BYTES:
                    break
            return events

        return self._read(key, read)

    def find_items(self, wanted: Mapping[str, int], owner: str | None, max_bytes: int) -> dict[str, bytes]:
        """The owner's items with these ids as JSON, by id; unknown ids are left out.

        Each counts as often as it is wanted. Raises InvalidField if they have more than `max_bytes` together.
        """
        found: dict[str, bytes] = {}
        size = 0
        with self._transaction("DEFERRED") as file:
            for id, times in wanted.items():
                row = file.execute(
                    "SELECT json FROM parts WHERE owner = ? AND id = ? ORDER BY record DESC LIMIT 1", (owner or "", id)
                ).fetchone()
                if row is not None:
                    found[id] = row[0]
                    size += times * len(row[0])
                    if size > max_bytes:
                        raise references_too_large(max_bytes)
        return found

    def append(self, key: Key, rows: Sequence[Row]) -> bool:
        """Add items at a record's end; call `evict` afterwards. Returns whether there is such a record.

        Raises InvalidField if it would be larger than the limits.
        """
        with self._transaction("IMMEDIATE") as file:
            record = _find(file, key)
            if record is None:
                return False
            (size,) = file.execute("SELECT size FROM records WHERE key = ?", (record,)).fetchone()
            place = _end(file, record, ITEM)
            self._check(key.id, size + size_of(rows), place + len(rows))
            _add(file, record, key.owner or "", rows, place)
            file.execute("UPDATE records SET size = size + ?, used = ? WHERE key = ?", (size_of(rows), _now(), record))
        return True

    def remove_item(self, key: Key, id: str) -> bool:
        """Remove one item of a record; returns whether it was there."""
        with self._transaction("IMMEDIATE") as file:
            record = _find(file, key)
            place = None if record is None else _place(file, record, key.owner, id)
            if record is None or place is None:
                return False
            which = (record, ITEM, place)
            at = "FROM parts WHERE record = ? AND kind = ? AND place = ?"
            (size,) = file.execute(f"SELECT LENGTH(json) {at}", which).fetchone()
            file.execute(f"DELETE {at}", which)
            file.execute("UPDATE records SET size = size - ? WHERE key = ?", (size, record))
        return True

    def set_value(self, key: Key, change: Callable[[JsonObject], JsonObject]) -> JsonObject | None:
        """Change a conversation's value, and return it; None if there is no such record.

        Raises InvalidField if it would be larger than the limits.
        """
        with self._transaction("IMMEDIATE") as file:
            record = _find(file, key)
            if record is None:
                return None
            sql = "SELECT value, size FROM records WHERE key = ?"
            before, size = file.execute(sql, (record,)).fetchone()
            value = change(json.loads(before))
            head = to_json(value)
            size += len(head) - len(before)
            self._check(key.id, size, 0)
            file.execute("UPDATE records SET value = ?, size = ? WHERE key = ?", (head, size, record))
        return value

    def mark_cancelled(self, key: Key) -> None:
        """Let the process of a running response know that it was cancelled."""
        with self._transaction("IMMEDIATE") as file:
            record = _find(file, key)
            file.execute("UPDATE records SET is_cancelled = 1 WHERE key = ? AND run != ''", (record,))

    def delete(self, id: str, owner: str | None) -> bool:
        """Remove a record; returns whether it was there."""
        with self._transaction("IMMEDIATE") as file:
            deleted = file.execute("DELETE FROM records WHERE owner = ? AND id = ?", (owner or "", id))
            return deleted.rowcount > 0

    def close(self) -> None:
        """Close the database."""
        file, self._open = self._open, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _check(self, id: str, size: int, num_rows: int) -> None:
        if num_rows > MAX_ROWS:
            raise InvalidField(
                f"{id} would have {num_rows} items and events, and what is stored may have at most {MAX_ROWS}; "
                "it stays as it is",
                param=None,
            )
        if size > self._max_bytes:
            raise InvalidField(
                f"{id} would have {size} bytes, and what is stored may have at most {self._max_bytes} "
                "(GENAI_RESPONSE_STORE_BYTES); it stays as it is",
                param=None,
            )

    def _read(self, key: Key, read: Callable[[sqlite3.Connection, int], T]) -> T | None:
        """What `read` finds in a record, which has been used now; None if there is no such record."""
        with self._transaction("DEFERRED") as file:
            record = _find(file, key)
            found = None if record is None else read(file, record)
        if record is not None:
            # A disk that is full, or can only be read, ends no reading.
            with suppress(sqlite3.Error):
                file.execute("UPDATE records SET used = MAX(used, ?) WHERE key = ?", (_now(), record))
        return found

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """All that the block does, or nothing."""
        try:
            if self._open is None:
                self._open = self._connect()
            self._open.execute(f"BEGIN {kind}")
            yield self._open
            self._open.execute("COMMIT")
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
            self._roll_back()
            if self._path is not None:
                self.close()  # the file may be another one next time
            name = "memory" if self._path is None else self._path.name
            raise StoreUnavailable(f"responses cannot be stored in {name}: {error}") from None
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._open is not None and self._open.in_transaction:
            with suppress(sqlite3.Error):
                self._open.execute("ROLLBACK")

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:  # it holds what clients have said
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        file = sqlite3.connect(self._path or ":memory:", timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            file.execute("PRAGMA journal_mode = WAL")
            # A power failure may lose the last records, and no others.
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute("PRAGMA secure_delete = ON")
            pages = max(_LEAST_PAGES, _SPARE * self._max_bytes // _PAGE)
            file.execute(f"PRAGMA max_page_count = {pages}")
            prepare(file)
            # Only from here on: to bring an old file to this version can take longer, and happens once.
            file.set_progress_handler(lambda: time.monotonic() > self.deadline, _LOOK_EVERY)
        except BaseException:
            file.close()
            raise
        return file


def references_too_large(max_bytes: int) -> InvalidField:
    """The error for a request whose references name too much."""
    return InvalidField(
        f"the items that item_reference names may have at most {max_bytes} bytes together "
        "(8 times GENAI_MAX_BODY_BYTES)",
        param=None,
    )


def no_such_item(after: str) -> InvalidField:
    """The error for a page behind an item that is not there."""
    return InvalidField(f"after must be the id of an input item, given {quoted(after)}", param="after")


def _find(file: sqlite3.Connection, key: Key) -> int | None:
    row = file.execute(
        "SELECT key FROM records WHERE owner = ? AND id = ? AND object = ?", (key.owner or "", key.id, key.object)
    ).fetchone()
    return None if row is None else row[0]


def _place(file: sqlite3.Connection, record: int, owner: str | None, id: str) -> int | None:
    """Where a record's item with this id is: the first one, if clients gave several the same."""
    row = file.execute(
        "SELECT MIN(place) FROM parts WHERE owner = ? AND id = ? AND record = ? AND kind = ?",
        (owner or "", id, record, ITEM),
    ).fetchone()
    return None if row is None else row[0]


def _end(file: sqlite3.Connection, record: int, kind: int) -> int:
    """The place behind a record's last row of a kind."""
    (last,) = file.execute("SELECT MAX(place) FROM parts WHERE record = ? AND kind = ?", (record, kind)).fetchone()
    return 0 if last is None else last + 1


def _stored(file: sqlite3.Connection, record: int, owner: str | None) -> StoredRecord:
    head, *more = file.execute(
        "SELECT value, run, pid, request, is_cancelled FROM records WHERE key = ?", (record,)
    ).fetchone()
    value = json.loads(head)
    parts = "FROM parts WHERE record = ? AND kind = ?"
    if "output" in value:
        output = file.execute(f"SELECT json {parts} ORDER BY place", (record, OUTPUT))
        value["output"] = [msgspec.Raw(part) for (part,) in output]
    (has_events,) = file.execute(f"SELECT EXISTS (SELECT 1 {parts})", (record, EVENT)).fetchone()
    run, pid, request, is_cancelled = more
    return StoredRecord(value, owner, bool(has_events), run, pid, request, bool(is_cancelled))


def _add(file: sqlite3.Connection, record: int, owner: str, rows: Sequence[Row], place: int = 0) -> None:
    """Add rows; those of each kind at its end, of items from this place on."""
    ends = {ITEM: place, OUTPUT: 0, EVENT: 0}
    placed = []
    for row in rows:
        placed.append((record, row.kind, ends[row.kind], owner, row.id, row.json))
        ends[row.kind] += 1
    file.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?)", placed)


def _now() -> int:
    return time.time_ns()
