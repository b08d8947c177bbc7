"""Stored responses and conversations, as in OpenAI's responses API, in the server's database (`Records`). Each is a
record: one row for the object itself, and one for each item and each stream event.

An access reads and writes only the rows that it needs. Records are visible only to their owners (API keys).
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from genai_server.errors import InvalidField, quoted
from genai_server.store.database import JsonObject

# Kinds of rows: input or conversation items, output items, and stream events.
ITEM, OUTPUT, EVENT = range(3)
# Items and events of a record, because a record is deleted in one transaction.
MAX_ROWS = 32_768
# A page of items or events ends early when it exceeds this size in bytes.
MAX_PAGE_BYTES = 4 * 1024 * 1024
_MAX_PAGE_EVENTS = 1000
# Nanoseconds by which eviction of running responses is delayed, longer than any runs (GENAI_REQUEST_TIMEOUT).
_MAX_RUN = 2 * 86_400 * 10**9
# The settings that limit what a request may continue or refer to.
_HISTORY_LIMIT = "8 times GENAI_MAX_BODY_BYTES, and at least GENAI_MAX_MEDIA_BODY_BYTES if a model takes images"


class Key(NamedTuple):
    """Identifies a stored record: whether it is a response or a conversation, its id, and its owner (a digest of the
    API key).
    """

    object: Literal["response", "conversation"]
    id: str
    # None without API keys.
    owner: str | None


@dataclass(frozen=True)
class Record:
    """A response or a conversation to be stored, with its items and, if clients may request them again, its stream
    events.
    """

    # The object that clients receive.
    value: JsonObject
    # The conversation's items; for a response, those before its output.
    items: Sequence[JsonObject]
    # Digest of the API key of its request; None without API keys.
    owner: str | None = None
    # The stream's events, if clients may request them again.
    events: Sequence[JsonObject] | None = None
    # For a running response: the id of this start of the server, the pid of its API process, and the unique id of its
    # request.
    run: str = ""
    pid: int = 0
    request: str = ""

    @property
    def id(self) -> str:
        """The id of the response or conversation."""
        id: str = self.value["id"]
        return id


class Row(NamedTuple):
    """One item or stream event of a record, encoded as JSON, as it is stored in a row of the database."""

    kind: int
    # None for an event.
    id: str | None
    json: bytes


class EncodedRecord:
    """A Record whose parts are encoded as JSON, ready to be stored by `Records.put`. Encoding a large record takes
    long, and is therefore done before the database's thread gets it, outside of the event loop.
    """

    def __init__(self, record: Record) -> None:
        output = record.value.get("output")
        events = [Row(EVENT, None, to_json(event)) for event in record.events or ()]
        self.record = record
        # The value as JSON, with an empty output.
        self.head = to_json(record.value if output is None else {**record.value, "output": []})
        self.rows = [*encode_items(record.items), *encode_items(output or (), OUTPUT), *events]
        # Size of the JSON in bytes.
        self.size = len(self.head) + size_of(self.rows)


@dataclass(frozen=True)
class StoredRecord:
    """A response or conversation that `Records.get` has read from the database, without its input items and events. The
    output items of a response are raw JSON.
    """

    value: JsonObject
    owner: str | None
    has_events: bool = False
    # See Record.
    run: str = ""
    pid: int = 0
    request: str = ""
    # Whether another API process has cancelled a running response.
    is_cancelled: bool = False


@dataclass(frozen=True)
class Page:
    """A page of a record's items, in the requested order, and whether more items follow."""

    # Pairs of id and item.
    items: list[tuple[str, JsonObject | msgspec.Raw]]
    has_more: bool


class History(NamedTuple):
    """The items of a conversation or response as JSON, in order, including a response's output. `Records.history`
    returns it.

    If older items were left out because the items are too large, `first` is the record's first item.
    """

    items: list[bytes]
    # The record's first item; None if `items` begins with it.
    first: bytes | None = None


class Records:
    """Reads and changes stored responses and conversations. The parameter `rows` of the methods is always the database
    connection with a transaction of the caller; the methods run in the database's thread.

    If the records exceed a limit, the least recently used record of the owner (API key) who uses most is evicted, so
    that an owner within an equal share loses none. An item that several records share counts for each of them. A change
    that makes a single record exceed a limit raises InvalidField.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        # Maximum total size of the records.
        self._max_bytes = max_bytes

    def put(self, rows: sqlite3.Connection, encoded: EncodedRecord) -> None:
        """Store a record, in place of a record with the same id and owner. The caller must call `evict` afterwards.
        Raises InvalidField if the record is too large.
        """
        record = encoded.record
        self._check(record.id, encoded.size, len(encoded.rows))
        owner, used = record.owner or "", time.time_ns() + (_MAX_RUN if record.run else 0)
        rows.execute("DELETE FROM records WHERE owner = ? AND id = ?", (owner, record.id))
        row = (owner, record.value["object"], record.id, used, encoded.head, encoded.size)
        added = rows.execute(
            "INSERT INTO records (owner, object, id, used, value, size, run, pid, request)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, record.run, record.pid, record.request),
        )
        assert added.lastrowid is not None
        _add_rows(rows, added.lastrowid, owner, encoded.rows)

    def complete(self, rows: sqlite3.Connection, encoded: EncodedRecord) -> bool:
        """Store the final state of a response that was stored while it ran. The caller must call `evict` afterwards.
        Raises InvalidField if the response is too large.

        Returns False if the response is no longer stored, because another process has deleted it.
        """
        record = encoded.record
        self._check(record.id, encoded.size, len(encoded.rows))
        key = _find(rows, Key("response", record.id, record.owner))
        if key is None:
            return False
        rows.execute(
            "UPDATE records SET value = ?, size = ?, used = ?, run = '', pid = 0, request = '' WHERE key = ?",
            (encoded.head, encoded.size, time.time_ns(), key),
        )
        rows.execute("DELETE FROM parts WHERE record = ? AND kind != ?", (key, ITEM))
        _add_rows(rows, key, record.owner or "", [row for row in encoded.rows if row.kind != ITEM])
        return True

    def evict(self, rows: sqlite3.Connection, newcomer: str | None) -> str | None:
        """If the records together exceed a limit, delete one of them and return its id; otherwise return None. The
        caller repeats the call until it returns None.

        `newcomer` is the owner of the record stored last, who loses a record only if no other owner has as much. Each
        call deletes only one record, so that other jobs can run between two calls.
        """
        for measure, limit in (("number", self._max_records), ("size", self._max_bytes)):
            if (rows.execute(f"SELECT SUM({measure}) FROM owners").fetchone()[0] or 0) > limit:
                (loser,) = rows.execute(
                    f"SELECT owner FROM owners ORDER BY {measure} DESC, owner = ? LIMIT 1", (newcomer or "",)
                ).fetchone()
                key, id = rows.execute(
                    "SELECT key, id FROM records WHERE owner = ? ORDER BY used LIMIT 1", (loser,)
                ).fetchone()
                rows.execute("DELETE FROM records WHERE key = ?", (key,))
                return str(id)
        return None

    def delete(self, rows: sqlite3.Connection, id: str, owner: str | None) -> bool:
        """Delete the record with the id `id` if it belongs to `owner` (the digest of an API key). Returns whether such
        a record existed.
        """
        deleted = rows.execute("DELETE FROM records WHERE owner = ? AND id = ?", (owner or "", id))
        return deleted.rowcount > 0

    def get(self, rows: sqlite3.Connection, key: Key) -> StoredRecord | None:
        """Return a record without its input items; None if it does not exist. The record counts as used."""
        if (record := _use(rows, key)) is None:
            return None
        head, *more = rows.execute(
            "SELECT value, run, pid, request, is_cancelled FROM records WHERE key = ?", (record,)
        ).fetchone()
        value = json.loads(head)
        parts = "FROM parts WHERE record = ? AND kind = ?"
        if "output" in value:
            output = rows.execute(f"SELECT json {parts} ORDER BY place", (record, OUTPUT))
            value["output"] = [msgspec.Raw(part) for (part,) in output]
        (has_events,) = rows.execute(f"SELECT EXISTS (SELECT 1 {parts})", (record, EVENT)).fetchone()
        run, pid, request, is_cancelled = more
        return StoredRecord(value, key.owner, bool(has_events), run, pid, request, bool(is_cancelled))

    def page(
        self, rows: sqlite3.Connection, key: Key, *, order: Literal["asc", "desc"], after: str | None, limit: int
    ) -> Page | None:
        """Return a page of a record's items, without a response's output; None if the record does not exist.

        The page has at most `limit` items, fewer if they are large, and begins after the item with the id `after`; None
        for the first page. `order` "desc" begins with the newest item. Raises InvalidField if the record has no item
        `after`.
        """
        if (record := _use(rows, key)) is None:
            return None
        comparison, start = (">", -1) if order == "asc" else ("<", 2**62)
        if after is not None:
            position = _position(rows, record, key.owner, after)
            if position is None:
                raise no_such_item(after)
            start = position
        parts = rows.execute(
            f"SELECT id, json FROM parts WHERE record = ? AND kind = ? AND place {comparison} ?"
            f" ORDER BY place {order} LIMIT ?",
            (record, ITEM, start, limit + 1),
        )
        items: list[tuple[str, JsonObject | msgspec.Raw]] = []
        size = 0
        for id, part in parts:
            if len(items) == limit or (items and size + len(part) > MAX_PAGE_BYTES):
                return Page(items, has_more=True)
            items.append((id, msgspec.Raw(part)))
            size += len(part)
        return Page(items, has_more=False)

    def item(self, rows: sqlite3.Connection, key: Key, id: str) -> bytes | None:
        """Return the item with this id of a record as JSON; None if the record or the item does not exist. Items of a
        response's output are not found.
        """
        if (record := _use(rows, key)) is None:
            return None
        sql = "SELECT json FROM parts WHERE owner = ? AND id = ? AND record = ? AND kind = ? ORDER BY place LIMIT 1"
        row = rows.execute(sql, (key.owner or "", id, record, ITEM)).fetchone()
        return None if row is None else row[0]

    def history(
        self, rows: sqlite3.Connection, key: Key, max_bytes: int, *, is_shortened: bool = False
    ) -> History | None:
        """Return all items of a record, including a response's output; None if the record does not exist.

        If the items together have more than `max_bytes` bytes, InvalidField is raised. With `is_shortened`, the result
        then has the first item, and the newest items with at most half of `max_bytes`, instead.
        """
        if (record := _use(rows, key)) is None:
            return None
        sql = "SELECT json FROM parts WHERE record = ? AND kind IN (?, ?) ORDER BY kind {0}, place {0}"
        items, size, num_newest = [], 0, 0
        for (part,) in rows.execute(sql.format("DESC"), (record, OUTPUT, ITEM)):
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
        (first,) = rows.execute(f"{sql.format('')} LIMIT 1", (record, OUTPUT, ITEM)).fetchone()
        return History(items[:num_newest][::-1], first)

    def events(self, rows: sqlite3.Connection, key: Key, after: int) -> list[bytes] | None:
        """Return the stored stream events of a response after the one with sequence number `after`, as JSON; at most
        one page of them. None if the record does not exist.
        """
        if (record := _use(rows, key)) is None:
            return None
        sql = "SELECT json FROM parts WHERE record = ? AND kind = ? AND place > ? ORDER BY place LIMIT ?"
        events, size = [], 0
        for (event,) in rows.execute(sql, (record, EVENT, after, _MAX_PAGE_EVENTS)):
            events.append(event)
            size += len(event)
            if size > MAX_PAGE_BYTES:
                break
        return events

    def find_items(
        self, rows: sqlite3.Connection, wanted: Mapping[str, int], owner: str | None, max_bytes: int
    ) -> dict[str, bytes]:
        """Return the stored items of `owner` with the ids in `wanted`, as JSON by id. Unknown ids are omitted.

        `owner` is the digest of an API key; None means the items of a server without API keys. `wanted` has the number
        of times that a request uses each item. Raises InvalidField if the items, counted that often, have more than
        `max_bytes` bytes.
        """
        items: dict[str, bytes] = {}
        size = 0
        for id, times in wanted.items():
            row = rows.execute(
                "SELECT json FROM parts WHERE owner = ? AND id = ? ORDER BY record DESC LIMIT 1", (owner or "", id)
            ).fetchone()
            if row is not None:
                items[id] = row[0]
                size += times * len(row[0])
                if size > max_bytes:
                    raise references_too_large(max_bytes)
        return items

    def set_value(
        self, rows: sqlite3.Connection, key: Key, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject | None:
        """Replace a conversation's JSON object by the result of `change`, which receives the present object, and return
        the new one; None if the record does not exist. Raises InvalidField if the record becomes too large.
        """
        if (record := _find(rows, key)) is None:
            return None
        before, size = rows.execute("SELECT value, size FROM records WHERE key = ?", (record,)).fetchone()
        value = change(json.loads(before))
        head = to_json(value)
        size += len(head) - len(before)
        self._check(key.id, size, 0)
        rows.execute("UPDATE records SET value = ?, size = ? WHERE key = ?", (head, size, record))
        return value

    def append(self, rows: sqlite3.Connection, key: Key, items: Sequence[Row]) -> bool:
        """Append items to a record. Returns False if the record does not exist. The caller must call `evict`
        afterwards. Raises InvalidField if the record becomes too large.
        """
        if (record := _find(rows, key)) is None:
            return False
        (size,) = rows.execute("SELECT size FROM records WHERE key = ?", (record,)).fetchone()
        sql = "SELECT COALESCE(MAX(place) + 1, 0) FROM parts WHERE record = ? AND kind = ?"
        (position,) = rows.execute(sql, (record, ITEM)).fetchone()
        self._check(key.id, size + size_of(items), position + len(items))
        _add_rows(rows, record, key.owner or "", items, position)
        rows.execute(
            "UPDATE records SET size = size + ?, used = ? WHERE key = ?", (size_of(items), time.time_ns(), record)
        )
        return True

    def remove_item(self, rows: sqlite3.Connection, key: Key, id: str) -> bool:
        """Delete the item with this id of a record. Returns whether the item existed."""
        record = _find(rows, key)
        position = None if record is None else _position(rows, record, key.owner, id)
        if position is None:
            return False
        which = (record, ITEM, position)
        at = "FROM parts WHERE record = ? AND kind = ? AND place = ?"
        (size,) = rows.execute(f"SELECT LENGTH(json) {at}", which).fetchone()
        rows.execute(f"DELETE {at}", which)
        rows.execute("UPDATE records SET size = size - ? WHERE key = ?", (size, record))
        return True

    def mark_cancelled(self, rows: sqlite3.Connection, key: Key) -> None:
        """Mark a running response as cancelled. The API process that runs the response reads the mark and ends the
        response. Does nothing if the response does not run.
        """
        rows.execute("UPDATE records SET is_cancelled = 1 WHERE key = ? AND run != ''", (_find(rows, key),))

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


def encode_items(items: Iterable[JsonObject], kind: int = ITEM) -> list[Row]:
    """Return items, which must have ids, as database rows of one kind: ITEM (input or conversation items) or OUTPUT (a
    response's output items).
    """
    return [Row(kind, item["id"], to_json(item)) for item in items]


def size_of(rows: Iterable[Row]) -> int:
    """Return the total size of the rows' JSON in bytes."""
    return sum(len(row.json) for row in rows)


def to_json(part: JsonObject) -> bytes:
    """Return an object encoded as JSON in UTF-8. Lone surrogates, which UTF-8 cannot encode, become escapes."""
    try:
        return msgspec.json.encode(part)
    except UnicodeEncodeError:
        return json.dumps(part, ensure_ascii=False).encode(errors="backslashreplace")


def references_too_large(max_bytes: int) -> InvalidField:
    """Return the error for a request whose references to stored items (`item_reference`) stand for more than
    `max_bytes` bytes.
    """
    return InvalidField(
        None,
        "the items referred to by item_reference may have at most",
        limit=f"{max_bytes} bytes in total",
        limited_by=_HISTORY_LIMIT,
    )


def no_such_item(after: str) -> InvalidField:
    """Return the error for a request for a page of items that begins after the item `after`, which does not exist."""
    return InvalidField("after", "must be the id of an input item", given=after)


def _find(rows: sqlite3.Connection, key: Key) -> int | None:
    """Return the primary key of the record that `key` identifies; None if it does not exist."""
    row = rows.execute(
        "SELECT key FROM records WHERE owner = ? AND id = ? AND object = ?", (key.owner or "", key.id, key.object)
    ).fetchone()
    return None if row is None else row[0]


def _use(rows: sqlite3.Connection, key: Key) -> int | None:
    """Return the primary key of the record that `key` identifies, and set the record's time of last use; None if the
    record does not exist.
    """
    record = _find(rows, key)
    if record is not None:
        with suppress(sqlite3.Error):  # a full or read-only disk, or another writer, does not prevent reading
            rows.execute("UPDATE records SET used = MAX(used, ?) WHERE key = ?", (time.time_ns(), record))
    return record


def _position(rows: sqlite3.Connection, record: int, owner: str | None, id: str) -> int | None:
    """Return the position, in a record, of the first item with this id; None if the record has no such item. `record`
    is the primary key of the record.
    """
    row = rows.execute(
        "SELECT MIN(place) FROM parts WHERE owner = ? AND id = ? AND record = ? AND kind = ?",
        (owner or "", id, record, ITEM),
    ).fetchone()
    return None if row is None else row[0]


def _add_rows(rows: sqlite3.Connection, record: int, owner: str, added: Sequence[Row], position: int = 0) -> None:
    """Add rows with items and events to the record with the primary key `record`.

    Items get consecutive positions from `position` on; output items, and also events, get consecutive positions from 0
    on.
    """
    ends = {ITEM: position, OUTPUT: 0, EVENT: 0}
    placed = []
    for row in added:
        placed.append((record, row.kind, ends[row.kind], owner, row.id, row.json))
        ends[row.kind] += 1
    rows.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?)", placed)
