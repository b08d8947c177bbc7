"""Records in an SQLite database, in memory or in a file that survives restarts and that all API processes share.

`store_items.py` has their items and events.
"""

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from genai_server.apis.responses.store_items import ItemDatabase, Key, add_rows, find_record
from genai_server.apis.responses.store_records import EVENT, ITEM, OUTPUT, EncodedRecord, StoredRecord, to_json
from genai_server.http.json_response import JsonObject

# Nanoseconds by which eviction of running responses is delayed, longer than any runs (GENAI_REQUEST_TIMEOUT).
_MAX_RUN = 2 * 86_400 * 10**9


class RecordDatabase(ItemDatabase):
    """Stores records within limits, visible only to their owners.

    Beyond a limit, the least recently used record of the largest owner is evicted, so that no owner evicts records of
    owners that are within an equal share. Items shared by several records count for each of them.
    """

    def __init__(self, path: Path | None, size: int, num_bytes: int) -> None:
        super().__init__(path, num_bytes)
        # Maximum number of records.
        self._size = size

    def put(self, encoded: EncodedRecord) -> None:
        """Store a record, replacing one with the same id; call `evict` afterwards.

        Raises InvalidField if the record alone exceeds the limits.
        """
        record = encoded.record
        self._check(record.id, encoded.size, len(encoded.rows))
        with self.transaction("IMMEDIATE") as file:
            owner, used = record.owner or "", time.time_ns() + (_MAX_RUN if record.run else 0)
            file.execute("DELETE FROM records WHERE owner = ? AND id = ?", (owner, record.id))
            row = (owner, record.value["object"], record.id, used, encoded.head, encoded.size)
            added = file.execute(
                "INSERT INTO records (owner, object, id, used, value, size, run, pid, request)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, record.run, record.pid, record.request),
            )
            assert added.lastrowid is not None
            add_rows(file, added.lastrowid, owner, encoded.rows)

    def complete(self, encoded: EncodedRecord) -> bool:
        """Complete a stored running response; call `evict` afterwards. Returns whether it was still stored: another
        process may have deleted it.

        Raises InvalidField if the record alone exceeds the limits.
        """
        record, rows = encoded.record, [row for row in encoded.rows if row.kind != ITEM]
        self._check(record.id, encoded.size, len(encoded.rows))
        with self.transaction("IMMEDIATE") as file:
            key = find_record(file, Key("response", record.id, record.owner))
            if key is None:
                return False
            file.execute(
                "UPDATE records SET value = ?, size = ?, used = ?, run = '', pid = 0, request = '' WHERE key = ?",
                (encoded.head, encoded.size, time.time_ns(), key),
            )
            file.execute("DELETE FROM parts WHERE record = ? AND kind != ?", (key, ITEM))
            add_rows(file, key, record.owner or "", rows)
        return True

    def evict(self, newcomer: str | None) -> str | None:
        """Delete one record if the limits are exceeded and return its id, else None.

        Each call deletes only one record, so that other jobs can run between two calls.
        """
        owner = newcomer or ""
        with self.transaction("IMMEDIATE") as file:
            for measure, limit in (("number", self._size), ("size", self._max_bytes)):
                if (file.execute(f"SELECT SUM({measure}) FROM owners").fetchone()[0] or 0) > limit:
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

    def set_value(self, key: Key, change: Callable[[JsonObject], JsonObject]) -> JsonObject | None:
        """Change a conversation's value and return it; None if the record does not exist.

        Raises InvalidField if the record would exceed the limits.
        """
        with self.transaction("IMMEDIATE") as file:
            record = find_record(file, key)
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
        """Mark a running response as cancelled, for the process that runs it."""
        with self.transaction("IMMEDIATE") as file:
            record = find_record(file, key)
            file.execute("UPDATE records SET is_cancelled = 1 WHERE key = ? AND run != ''", (record,))

    def delete(self, id: str, owner: str | None) -> bool:
        """Delete a record; returns whether it existed."""
        with self.transaction("IMMEDIATE") as file:
            deleted = file.execute("DELETE FROM records WHERE owner = ? AND id = ?", (owner or "", id))
            return deleted.rowcount > 0


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
