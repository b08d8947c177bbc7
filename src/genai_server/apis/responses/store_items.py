"""The items and events of stored records: indexed rows, so that each access reads and writes only those concerned."""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from genai_server.apis.responses.schemas import InputItemsParameters
from genai_server.apis.responses.store_records import EVENT, ITEM, OUTPUT, Page, Row, size_of
from genai_server.apis.responses.store_tables import prepare
from genai_server.apis.shared.database import PAGE_BYTES, Database
from genai_server.errors import InvalidField
from genai_server.http.json_response import JsonObject
from genai_server.quoted_values import quoted

# Items and events of a record, because a record is deleted in one transaction.
MAX_ROWS = 32_768
# A page of items or events ends early when it exceeds this size in bytes.
MAX_PAGE_BYTES = 4 * 1024 * 1024
_MAX_PAGE_EVENTS = 1000
# Database size limit in bytes for each byte of records. Indexes and partly filled pages take up to 5 bytes if items are
# small. A file that is full before its records reach their limit would never accept another one.
_SIZE_FACTOR = 8
_MIN_PAGES = 256
# The settings that limit what a request may continue or refer to.
_HISTORY_LIMIT = "8 times GENAI_MAX_BODY_BYTES, and at least GENAI_MAX_MEDIA_BODY_BYTES if a model takes images"

T = TypeVar("T")


class Key(NamedTuple):
    """Identifies a record."""

    object: Literal["response", "conversation"]
    id: str
    # None without API keys.
    owner: str | None


class History(NamedTuple):
    """A record's items as JSON, including a response's output."""

    items: list[bytes]
    # The record's first item; None if `items` begins with it.
    first: bytes | None = None


class ItemDatabase(Database):
    """Reads and changes the rows of records, which are visible only to their owners.

    Belongs to one thread. All methods block, and raise StoreUnavailable if the file cannot be read or written, or if
    the deadline has passed. The next call tries again.
    """

    def __init__(self, path: Path | None, num_bytes: int) -> None:
        super().__init__(path, max(_MIN_PAGES, _SIZE_FACTOR * num_bytes // PAGE_BYTES), prepare, "responses")
        # Maximum total size of the records.
        self._max_bytes = num_bytes

    def page(self, key: Key, query: InputItemsParameters) -> Page | None:
        """A page of a record's items without its output; None if the record does not exist.

        Raises InvalidField if `after` is not one of its items.
        """

        def read(file: sqlite3.Connection, record: int) -> Page:
            beyond, start = (">", -1) if query.order == "asc" else ("<", 2**62)
            if query.after is not None:
                place = _place(file, record, key.owner, query.after)
                if place is None:
                    raise no_such_item(query.after)
                start = place
            rows = file.execute(
                f"SELECT id, json FROM parts WHERE record = ? AND kind = ? AND place {beyond} ?"
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
        """One item of a record as JSON; None if the record or the item does not exist."""

        sql = "SELECT json FROM parts WHERE owner = ? AND id = ? AND record = ? AND kind = ? ORDER BY place LIMIT 1"
        row: tuple[bytes] | None = self._read(
            key, lambda file, record: file.execute(sql, (key.owner or "", id, record, ITEM)).fetchone()
        )
        return None if row is None else row[0]

    def history(self, key: Key, max_bytes: int, *, is_shortened: bool = False) -> History | None:
        """A record's items and a response's output; None if the record does not exist.

        If they exceed `max_bytes`, `is_shortened` returns the first item and the newest ones up to half that size;
        otherwise InvalidField is raised.
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
                    None,
                    f"{quoted(key.id)} has more bytes of items than a conversation that is continued may have:",
                    limit=max_bytes,
                    limited_by=_HISTORY_LIMIT,
                )
            (first,) = file.execute(f"{sql.format('')} LIMIT 1", (record, OUTPUT, ITEM)).fetchone()
            return History(items[:num_newest][::-1], first)

        return self._read(key, read)

    def events(self, key: Key, after: int) -> list[bytes] | None:
        """The next stream events after this sequence number; None if the record does not exist."""

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
        """The owner's items with these ids as JSON, keyed by id. Unknown ids are omitted.

        An item counts each time it is requested. Raises InvalidField if the total exceeds `max_bytes`.
        """
        found: dict[str, bytes] = {}
        size = 0
        with self.transaction("DEFERRED") as file:
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
        """Append items to a record; call `evict` afterwards. Returns whether the record exists.

        Raises InvalidField if the record would exceed the limits.
        """
        with self.transaction("IMMEDIATE") as file:
            record = find_record(file, key)
            if record is None:
                return False
            (size,) = file.execute("SELECT size FROM records WHERE key = ?", (record,)).fetchone()
            sql = "SELECT COALESCE(MAX(place) + 1, 0) FROM parts WHERE record = ? AND kind = ?"
            (place,) = file.execute(sql, (record, ITEM)).fetchone()
            self._check(key.id, size + size_of(rows), place + len(rows))
            add_rows(file, record, key.owner or "", rows, place)
            file.execute(
                "UPDATE records SET size = size + ?, used = ? WHERE key = ?", (size_of(rows), time.time_ns(), record)
            )
        return True

    def remove_item(self, key: Key, id: str) -> bool:
        """Delete one item of a record; returns whether it existed."""
        with self.transaction("IMMEDIATE") as file:
            record = find_record(file, key)
            place = None if record is None else _place(file, record, key.owner, id)
            if record is None or place is None:
                return False
            which = (record, ITEM, place)
            at = "FROM parts WHERE record = ? AND kind = ? AND place = ?"
            (size,) = file.execute(f"SELECT LENGTH(json) {at}", which).fetchone()
            file.execute(f"DELETE {at}", which)
            file.execute("UPDATE records SET size = size - ? WHERE key = ?", (size, record))
        return True

    def _check(self, id: str, size: int, num_rows: int) -> None:
        if num_rows > MAX_ROWS:
            raise InvalidField(
                None, f"{id} is unchanged: it may have at most", limit=f"{MAX_ROWS} items and events", given=num_rows
            )
        if size > self._max_bytes:
            raise InvalidField(
                None,
                f"{id} is unchanged: it may have at most",
                limit=f"{self._max_bytes} bytes",
                limited_by="GENAI_RESPONSE_STORE_BYTES",
                given=size,
            )

    def _read(self, key: Key, read: Callable[[sqlite3.Connection, int], T]) -> T | None:
        """Read from a record and mark it as used; None if the record does not exist."""
        with self.transaction("DEFERRED") as file:
            record = find_record(file, key)
            found = None if record is None else read(file, record)
        if record is not None:
            # A full or read-only disk does not prevent reading.
            with suppress(sqlite3.Error):
                file.execute("UPDATE records SET used = MAX(used, ?) WHERE key = ?", (time.time_ns(), record))
        return found


def references_too_large(max_bytes: int) -> InvalidField:
    """The error for a request that refers to too many bytes of items."""
    return InvalidField(
        None,
        "the items referred to by item_reference may have at most",
        limit=f"{max_bytes} bytes in total",
        limited_by=_HISTORY_LIMIT,
    )


def no_such_item(after: str) -> InvalidField:
    """The error for a page after an unknown item."""
    return InvalidField("after", "must be the id of an input item", given=after)


def find_record(file: sqlite3.Connection, key: Key) -> int | None:
    row = file.execute(
        "SELECT key FROM records WHERE owner = ? AND id = ? AND object = ?", (key.owner or "", key.id, key.object)
    ).fetchone()
    return None if row is None else row[0]


def _place(file: sqlite3.Connection, record: int, owner: str | None, id: str) -> int | None:
    """The position of a record's item with this id, the first one if clients reused the id."""
    row = file.execute(
        "SELECT MIN(place) FROM parts WHERE owner = ? AND id = ? AND record = ? AND kind = ?",
        (owner or "", id, record, ITEM),
    ).fetchone()
    return None if row is None else row[0]


def add_rows(file: sqlite3.Connection, record: int, owner: str, rows: Sequence[Row], place: int = 0) -> None:
    """Append rows to those of their kind. Items are placed from position `place` on."""
    ends = {ITEM: place, OUTPUT: 0, EVENT: 0}
    placed = []
    for row in rows:
        placed.append((record, row.kind, ends[row.kind], owner, row.id, row.json))
        ends[row.kind] += 1
    file.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?)", placed)
