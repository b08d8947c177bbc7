"""The database in a file, and the one in memory for what cannot be written to the file."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from genai_server.apis.responses.store_database import RecordDatabase
from genai_server.apis.responses.store_items import Key
from genai_server.apis.responses.store_records import Record, encode_record
from genai_server.apis.shared.database_thread import DatabaseThread
from genai_server.errors import InvalidField, StoreUnavailable

log = logging.getLogger(__name__)

# Timeout of a file access in seconds, so that a slow disk does not delay answers longer.
FILE_TIMEOUT = 2.0
# Timeout of an access in memory, which only a lack of processor time can slow down.
_MEMORY_TIMEOUT = 10.0

T = TypeVar("T")


class _File(DatabaseThread[RecordDatabase]):
    """The thread of the database in the file. It logs the first of consecutive failures."""

    _is_broken = False

    async def run(self, owner: str | None, do: Callable[[RecordDatabase], T]) -> T:
        try:
            found = await super().run(owner, do)
        except StoreUnavailable as error:
            if not self._is_broken:
                log.warning("%s; they are kept in memory (GENAI_RESPONSE_STORE_FILE)", error.message)
            self._is_broken = True
            raise
        if self._is_broken:
            log.info("responses are stored in the file again")
        self._is_broken = False
        return found


class FileWithFallback:
    """Records in a file, or in memory if there is no file or it fails, so that disk failures do not lose answers.

    Belongs to the event loop; must be closed. Methods that read raise StoreUnavailable.
    """

    def __init__(self, memory: RecordDatabase, file: RecordDatabase | None) -> None:
        self._memory = DatabaseThread(memory, "response-store-memory", _MEMORY_TIMEOUT)
        # None if there is no file.
        self.file = None if file is None else _File(file, "response-store", FILE_TIMEOUT)
        # Ids of this process's running responses that are in the file.
        self._begun: set[str] = set()

    def has_begun(self, id: str) -> bool:
        """Whether a running response of this process is in the file."""
        return id in self._begun

    async def find(self, key: Key, job: Callable[[RecordDatabase], T | None]) -> T | None:
        """Run a job in memory, and in the file if memory has no result."""
        found = None
        if self.file is None or self._memory.is_started:
            found = await self._memory.run(key.owner, job)
        return found if found is not None or self.file is None else await self.file.run(key.owner, job)

    async def find_all(self, owner: str | None, job: Callable[[RecordDatabase], dict[str, T]]) -> dict[str, T]:
        """The results of a job in memory and in the file."""
        found = await self._memory.run(owner, job) if self._memory.is_started else {}
        return found if self.file is None else found | await self.file.run(owner, job)

    async def change(self, key: Key, job: Callable[[RecordDatabase], T]) -> T:
        """Run a job that changes a record in the file, or in memory if the file does not have it."""
        if self.file is None:
            return await self._memory.run(key.owner, job)
        changed = await self.file.run(key.owner, job)
        if changed:  # a slow write to the file may have succeeded after its timeout
            await self._forget_in_memory(key.id, key.owner)
        elif self._memory.is_started:
            changed = await self._memory.run(key.owner, job)
        return changed

    async def put(self, record: Record) -> str | None:
        """Store a record, or complete one that has begun in the file unless it was deleted there.

        Returns the reason why it is not in the file; None if it is, or if there is no file.
        """
        # Before the first await: one that is deleted in the meantime must not be stored as a new one.
        is_begun = record.id in self._begun
        self._begun.discard(record.id)
        encoded = await asyncio.to_thread(encode_record, record)
        database, reason = self.file or self._memory, None
        try:
            await database.run(record.owner, lambda one: one.complete(encoded) if is_begun else one.put(encoded))
        except InvalidField as error:  # it is too large
            error.__traceback__ = None  # its frames refer to the record, and to the error
            with suppress(StoreUnavailable):
                await self.delete(record.id, record.owner)
            return error.message
        except StoreUnavailable as error:
            if self.file is None:
                return error.message
            database, reason = self._memory, error.message
            with suppress(StoreUnavailable, InvalidField):
                await self._memory.run(record.owner, lambda memory: memory.put(encoded))
        else:
            with suppress(StoreUnavailable):
                await self._forget_in_memory(record.id, record.owner)
        if record.id in await self._evict(database, record.owner):
            reason = "it exceeds this API key's share of GENAI_RESPONSE_STORE_BYTES"
        return reason

    async def begin(self, record: Record) -> None:
        """Store a running response in the file only. Raises InvalidField if it is too large."""
        assert self.file is not None
        encoded = await asyncio.to_thread(encode_record, record)
        await self.file.run(record.owner, lambda file: file.put(encoded))
        self._begun.add(record.id)
        await self._evict(self.file, record.owner)

    async def delete(self, id: str, owner: str | None) -> None:
        """Delete a record."""
        self._begun.discard(id)
        await self._forget_in_memory(id, owner)
        await (self.file or self._memory).run(owner, lambda one: one.delete(id, owner))

    async def evict(self, owner: str | None) -> None:
        """Delete records until the limits are met, after a change of this owner's records."""
        for database in (self.file, self._memory):
            if database is not None and database.is_started:
                await self._evict(database, owner)

    async def close(self) -> None:
        """Finish waiting jobs and close the databases."""
        for database in (self.file, self._memory):
            if database is not None:
                await database.close()

    async def _evict(self, database: DatabaseThread[RecordDatabase], owner: str | None) -> set[str]:
        """Delete records, each in a separate job, until the limits are met; returns their ids."""
        evicted = set()
        with suppress(StoreUnavailable):  # the next record continues the eviction
            while (id := await database.run(owner, lambda one: one.evict(owner))) is not None:
                evicted.add(id)
        return evicted

    async def _forget_in_memory(self, id: str, owner: str | None) -> None:
        """Delete the copy in memory of a record that is in the file."""
        if self.file is not None and self._memory.is_started:
            await self._memory.run(owner, lambda memory: memory.delete(id, owner))
