"""Batches of the OpenAI batch API in the server's database, the store, where every API process sees their state
(`BatchStore`). Their input and result files are in files.py.
"""

import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from genai_server.batch_files import LineError, listed
from genai_server.errors import BatchNotFound, InvalidField, RateLimitExceeded, quoted
from genai_server.store.database import JsonObject
from genai_server.store.files import FileStore, StoredFile, find, insert, start_of

# Batches of an owner that have not ended, and the bytes of those that are kept: 10,000 of the usual size.
MAX_OPEN = 100
MAX_KEPT_BYTES = 10 * 1024 * 1024
# States in which a batch can be cancelled.
_CANCELLABLE = ("validating", "in_progress")
NO_SPACE = "there is no space for the results: delete files (%s)"
_COLUMNS = "id, owner, input, output, errors, keeps, value"


@dataclass(frozen=True)
class StoredBatch:
    """A batch that has not ended, with what the API process that runs it needs: its owner, and the ids of its input
    file, output file and error file. BatchStore reads it from the store.
    """

    id: str
    # Stands for an API key; "" without API keys.
    owner: str
    # Ids of the files.
    input: str
    output: str
    errors: str
    # Seconds for which the results are kept.
    keeps: int
    # In OpenAI's format.
    value: JsonObject

    @property
    def endpoint(self) -> str:
        """The path to which the requests of the batch are sent, such as `/v1/chat/completions`."""
        path: str = self.value["endpoint"]
        return path

    @property
    def expires(self) -> int:
        """The time in seconds since 1970 after which no more requests of the batch are run."""
        expires_at: int = self.value["expires_at"]
        return expires_at


class BatchStore:
    """Creates, reads and changes batches in the store, the database that all API processes share. Their input and
    result files are in the given FileStore. Each API process has one BatchStore.

    Only the event loop may call the methods. Each of them raises StoreUnavailable if the store cannot be used.
    """

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self._database = files.database

    async def create(self, batch: StoredBatch) -> None:
        """Store a new batch, and register its result files, which are empty and not visible to requests yet.

        Raises InvalidField if the owner (API key) has no such input file or no space for results, and RateLimitExceeded
        if the owner has the maximum number of batches that have not ended.
        """
        await self._database.write(batch.owner, lambda rows: self._insert(rows, batch), is_durable=True)

    async def get(self, id: str, owner: str) -> JsonObject:
        """Return the batch with this id, which must belong to `owner` (an API key), in OpenAI's format. Raises
        BatchNotFound.
        """
        return _found(await self._database.read(owner, lambda rows: _value(rows, id, owner)), id)

    async def page(self, owner: str, *, after: str | None, limit: int) -> tuple[list[JsonObject], bool]:
        """Return a page of at most `limit` batches of `owner` (an API key), newest first, in OpenAI's format, and
        whether more follow. The page begins after the batch with the id `after`; None for the first page.

        Raises InvalidField if the owner has no batch with the id `after`.
        """

        def read(rows: sqlite3.Connection) -> list[JsonObject]:
            start = start_of(rows, "batches", after, owner, "desc")
            batches = rows.execute(
                "SELECT value FROM batches WHERE owner = ? AND key < ? ORDER BY key DESC LIMIT ?",
                (owner, start, limit + 1),
            )
            return [json.loads(value) for (value,) in batches]

        batches = await self._database.read(owner, read)
        return batches[:limit], len(batches) > limit

    async def cancel(self, id: str, owner: str) -> JsonObject:
        """Mark a batch of `owner` (an API key) for cancellation by the API process that runs it, and return it in
        OpenAI's format.

        Raises BatchNotFound if the owner has no such batch, and InvalidField if the batch is in a state in which it
        cannot be cancelled.
        """

        def cancel(rows: sqlite3.Connection) -> JsonObject | None:
            value = _value(rows, id, owner)
            if value is None or value["status"] in ("cancelling", "cancelled"):
                return value
            if value["status"] not in _CANCELLABLE:
                raise InvalidField("batch_id", f"{id} cannot be cancelled: it is {value['status']}")
            value |= {"status": "cancelling", "cancelling_at": int(time.time())}
            _set_value(rows, id, value)
            return value

        return _found(await self._database.write(owner, cancel, is_durable=True), id)

    async def open(self) -> list[StoredBatch]:
        """Return all batches of all owners that have not ended, oldest first."""

        def read(rows: sqlite3.Connection) -> list[StoredBatch]:
            batches = rows.execute(f"SELECT {_COLUMNS} FROM batches WHERE is_open ORDER BY key")
            return [
                StoredBatch(id, owner, input, output, errors, keeps, json.loads(value))
                for id, owner, input, output, errors, keeps, value in batches
            ]

        return await self._database.read("", read)

    async def reread(self, batch: StoredBatch) -> JsonObject | None:
        """Return the batch in OpenAI's format as it is now in the store, where another process may have changed it;
        None if the batch has ended.
        """
        return await self._database.read(batch.owner, lambda rows: _open_value(rows, batch))

    async def update(
        self, batch: StoredBatch, change: Callable[[JsonObject], None], sizes: tuple[int, int]
    ) -> tuple[JsonObject, str]:
        """Change a running batch in the store: `change` modifies its object in OpenAI's format. `sizes` are the bytes
        of its output file and of its error file so far.

        Returns the changed object, and the name of the setting whose limit leaves no space for more results; "" if
        there is space.
        """

        def update(rows: sqlite3.Connection) -> tuple[JsonObject, str]:
            value = _open_value(rows, batch)
            assert value is not None
            change(value)
            for id, size in zip((batch.output, batch.errors), sizes, strict=True):
                rows.execute("UPDATE files SET size = ? WHERE id = ?", (size, id))
            limit = self._files.reached_limit(rows, batch.owner)
            value["errors"] = listed([LineError(None, "storage_full", NO_SPACE % limit)]) if limit else None
            _set_value(rows, batch.id, value)
            return value, limit

        return await self._database.write(batch.owner, update, is_durable=True)

    async def end(self, batch: StoredBatch, changes: JsonObject, sizes: tuple[int, int]) -> None:
        """End a batch: apply `changes` to its object and make its result files visible, in one transaction. `sizes` are
        the bytes of its output file and of its error file. Result files without content are removed.
        """

        def end(rows: sqlite3.Connection) -> None:
            now = int(time.time())
            value = _open_value(rows, batch)
            assert value is not None
            value |= {"errors": None, **changes}
            files = (("output_file_id", batch.output), ("error_file_id", batch.errors))
            for (field, id), size in zip(files, sizes, strict=True):
                if size:
                    value[field] = id
                    rows.execute(
                        "UPDATE files SET size = ?, created = ?, expires = ?, writer = '' WHERE id = ?",
                        (size, now, now + batch.keeps, id),
                    )
                else:
                    rows.execute("DELETE FROM files WHERE id = ?", (id,))
            _set_value(rows, batch.id, value)
            rows.execute("UPDATE batches SET is_open = 0 WHERE id = ?", (batch.id,))
            rows.execute(
                "DELETE FROM batches WHERE NOT is_open AND key IN (SELECT key FROM (SELECT key, SUM(LENGTH(value))"
                " OVER (ORDER BY key DESC) AS num_bytes FROM batches WHERE owner = ?) WHERE num_bytes > ?)",
                (batch.owner, MAX_KEPT_BYTES),
            )

        await self._database.write(batch.owner, end, is_durable=True)

    def _insert(self, rows: sqlite3.Connection, batch: StoredBatch) -> None:
        file = find(rows, batch.input, batch.owner)
        if file is None or file.purpose != "batch":
            raise InvalidField("input_file_id", "must be the id of a file with purpose batch", given=batch.input)
        (num_open,) = rows.execute(
            "SELECT COUNT(*) FROM batches WHERE is_open AND owner = ?", (batch.owner,)
        ).fetchone()
        if num_open >= MAX_OPEN:
            raise RateLimitExceeded(f"this key may have {MAX_OPEN} batches that have not ended, and has {num_open}")
        if limit := self._files.reached_limit(rows, batch.owner):
            raise InvalidField("input_file_id", f"cannot be used: {NO_SPACE % limit}")
        for id, name in ((batch.output, f"{batch.id}_output.jsonl"), (batch.errors, f"{batch.id}_error.jsonl")):
            result = StoredFile(id, batch.owner, batch.value["created_at"], None, name, "batch_output", 0)
            insert(rows, result, writer=batch.id)
        rows.execute(
            f"INSERT INTO batches ({_COLUMNS}, is_open) VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
            (batch.id, batch.owner, batch.input, batch.output, batch.errors, batch.keeps, _json(batch.value)),
        )


def _found(value: JsonObject | None, id: str) -> JsonObject:
    if value is None:
        raise BatchNotFound(f"there is no batch {quoted(id)}", param="batch_id")
    return value


def _value(rows: sqlite3.Connection, id: str, owner: str) -> JsonObject | None:
    row = rows.execute("SELECT value FROM batches WHERE id = ? AND owner = ?", (id, owner)).fetchone()
    return None if row is None else json.loads(row[0])


def _open_value(rows: sqlite3.Connection, batch: StoredBatch) -> JsonObject | None:
    row = rows.execute("SELECT value FROM batches WHERE id = ? AND is_open", (batch.id,)).fetchone()
    return None if row is None else json.loads(row[0])


def _set_value(rows: sqlite3.Connection, id: str, value: JsonObject) -> None:
    rows.execute("UPDATE batches SET value = ? WHERE id = ?", (_json(value), id))


def _json(value: JsonObject) -> bytes:
    return json.dumps(value).encode()
