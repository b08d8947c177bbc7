"""Responses that run without a client, in this API process and, if there is a file, in others."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import psutil

from genai_server.apis.responses.response import error_of
from genai_server.apis.responses.store_fallback import FileWithFallback
from genai_server.apis.responses.store_items import Key
from genai_server.apis.responses.store_records import RUNNING, KeptResponse, Record, Running, StoredRecord
from genai_server.errors import (
    InvalidField,
    NoEngineReady,
    RequestNotFound,
    ServerStopping,
    StoreUnavailable,
    Unavailable,
)

# Seconds that another process may take to end its response: its engine first completes a forward pass.
_CANCEL_TIMEOUT = 20.0
# Seconds between two checks whether it has ended.
_CHECK_EVERY = 0.05

# Ends the engine request with this unique id, in whichever API process. Raises NoEngineReady.
EndRequest = Callable[[str], Awaitable[object]]


class BackgroundResponses:
    """Tells other processes of those of this one, and ends theirs. Belongs to the event loop."""

    def __init__(self, records: FileWithFallback, run: str, end_request: EndRequest | None) -> None:
        self._records = records
        # Identifies this start of the server: running responses of other starts have ended.
        self._run = run
        # None if the file is not shared.
        self._end_request = end_request

    async def begin(self, running: Running) -> None:
        """Add a response to the file, so that all processes can find it."""
        if self._records.file is not None:
            begun = Record(
                running.response, running.items, running.owner, run=self._run, pid=os.getpid(), request=running.request
            )
            with suppress(StoreUnavailable, InvalidField):  # the ended response is stored in memory, or nowhere
                await self._records.begin(begun)

    def checked(self, record: StoredRecord) -> StoredRecord:
        """The record, failed if the process of its running response has ended."""
        if record.is_running and (record.run != self._run or not psutil.pid_exists(record.pid)):
            error = error_of(ServerStopping("the server or its API process ended while the response was running"))
            return replace(record, run="", value={**record.value, "status": "failed", "error": error})
        return record

    async def was_ended_elsewhere(self, id: str, owner: str | None) -> bool:
        """Whether another process has cancelled or deleted a response of this process."""
        file, key = self._records.file, Key("response", id, owner)
        if file is None or not self._records.has_begun(id):
            return False
        try:
            record = await file.run(owner, lambda database: database.get(key))
        except StoreUnavailable:
            return False
        return record is None or record.is_cancelled

    async def mark_cancelled(self, running: StoredRecord) -> None:
        """Tell another process that its response is cancelled, not cut off. Raises StoreUnavailable."""
        key = Key("response", running.value["id"], running.owner)
        assert self._records.file is not None
        await self._records.file.run(running.owner, lambda database: database.mark_cancelled(key))

    async def end_elsewhere(self, running: StoredRecord) -> None:
        """End the engine request of another process's response."""
        if self._end_request is not None:
            with suppress(NoEngineReady, RequestNotFound):  # the request has ended, perhaps with its engine
                await self._end_request(running.request)


async def until_ended(id: str, find: Callable[[], Awaitable[KeptResponse]]) -> KeptResponse:
    """The response, once `find` finds it ended by its process. Raises Unavailable if this takes too long."""
    try:
        async with asyncio.timeout(_CANCEL_TIMEOUT):
            while True:
                found = await find()
                if found.response["status"] not in RUNNING:
                    return found
                await asyncio.sleep(_CHECK_EVERY)
    except TimeoutError:
        raise Unavailable(f"response {id} has not ended yet; try again", param="response_id") from None
