"""Running responses, and what is stored of ended ones and of conversations, in a file or in memory."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import psutil

from genai_server.api.generation.record_file import RecordFile
from genai_server.api.generation.records import RUNNING, MemoryRecords, Record
from genai_server.errors import (
    ConversationNotFound,
    InvalidField,
    NoEngineReady,
    ResponseNotFound,
    ServerStopping,
    StoreUnavailable,
    Unavailable,
)
from genai_server.openai_api.response_builder import error_of
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.quoted_values import quoted

log = logging.getLogger(__name__)

# Seconds that an answer waits for the disk.
_PATIENCE = 2.0
# Most calls that wait for the disk; each holds a response.
_MOST_WAITING = 64
# Seconds that another process may take to end its response: its engine first ends a forward pass.
_ENDING_PATIENCE = 20.0
# Seconds between two looks whether it has.
_LOOK_EVERY = 0.05

T = TypeVar("T")
# Ends the engine request with this unique id, whichever API process has sent it. Raises NoEngineReady.
EndRequest = Callable[[str], Awaitable[object]]


class KeptResponse(Protocol):
    """A running or ended response in the store."""

    @property
    def response(self) -> JsonObject: ...

    @property
    def items(self) -> list[JsonObject]:
        """The items of its conversation up to the response."""
        ...

    @property
    def owner(self) -> str | None:
        """Stands for the API key that it was requested with."""
        ...

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of the prompt that have been read, and of how many; None once all have been read."""
        ...

    def cancel(self) -> None:
        """End the response. Raises InvalidField if it has ended in another way."""
        ...

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The events of its stream behind the one with this number. Raises InvalidField if it has none."""
        ...


class RunningInBackground(KeptResponse, Protocol):
    """A response that runs without a client."""

    @property
    def request(self) -> str:
        """The unique id of its request."""
        ...

    async def stop(self) -> None:
        """End it at the end of the server."""
        ...


class ResponseStore:
    """Finds responses and conversations of their owners. Belongs to the event loop; must be closed.

    What the file cannot take stays in memory, so that the disk costs no answer.
    """

    def __init__(
        self,
        size: int,
        num_bytes: int,
        file: RecordFile | None = None,
        *,
        run: str = "",
        end_request: EndRequest | None = None,
    ) -> None:
        self._is_on = size > 0
        self._memory = MemoryRecords(size, num_bytes)
        self._file = file if self._is_on else None
        # Names this start of the server: running responses of others have ended with it.
        self._run = run
        # None if no other process shares the file.
        self._end_request = end_request
        self._thread = ThreadPoolExecutor(1, "response-store")
        self._num_waiting = 0
        self._is_broken = False
        # By id.
        self._running: dict[str, KeptResponse] = {}
        self._background: dict[str, RunningInBackground] = {}
        # Of responses whose clients do not wait for it.
        self._storing: set[asyncio.Task[Any]] = set()

    @property
    def is_on(self) -> bool:
        """Whether anything is stored."""
        return self._is_on

    def begin(self, running: KeptResponse) -> None:
        """Add a running response."""
        self._running[running.response["id"]] = running

    async def begin_background(self, running: RunningInBackground) -> None:
        """Add a response that runs without a client; the file has it, too, so that all processes know it."""
        id = running.response["id"]
        self._running[id] = self._background[id] = running
        if self._file is not None:
            record = Record(
                running.response,
                running.items,
                running.owner,
                run=self._run,
                pid=os.getpid(),
                request=running.request,
            )
            with suppress(StoreUnavailable):  # the log has it; the end is stored in memory
                await self._on_file(lambda file: file.put(record))

    async def finish(self, ended: Record) -> str | None:
        """Replace a running response by the ended one, unless it was deleted meanwhile.

        Returns why it is not in the file; None if it is, or if there is no file.
        """
        self._background.pop(ended.id, None)
        if ended.id not in self._running:
            with suppress(StoreUnavailable):
                await self._delete(ended.id, ended.owner)  # the mark that it was deleted
            return None
        reason = await self.put(ended)
        if self._running.pop(ended.id, None) is None:
            with suppress(StoreUnavailable):
                await self._delete(ended.id, ended.owner)
        return reason

    def abandon(self, id: str) -> None:
        """Remove a running response."""
        self._running.pop(id, None)

    def later(self, storing: Coroutine[Any, Any, object]) -> None:
        """Store a response whose client does not wait for it."""
        task = asyncio.ensure_future(storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def get(self, id: str, owner: str | None = None) -> KeptResponse:
        """A response of this owner. Raises ResponseNotFound and StoreUnavailable."""
        running = self._running.get(id)
        if running is not None and running.owner == owner:
            return running
        record = await self._find(id, owner)
        if record is None or record.value["object"] != "response":
            raise ResponseNotFound(f"no response {quoted(id)} is kept here", param="response_id")
        if record.is_running and (record.run != self._run or not psutil.pid_exists(record.pid)):
            error = error_of(ServerStopping("the server, or its process, ended while it ran"))
            return replace(record, value={**record.value, "status": "failed", "error": error})
        return record

    async def cancel(self, id: str, owner: str | None = None) -> KeptResponse:
        """End a running response, in whichever process it runs, and return it.

        Raises ResponseNotFound, StoreUnavailable, Unavailable if it does not end in time, and InvalidField if it has
        ended in another way.
        """
        kept = await self.get(id, owner)
        if isinstance(kept, Record) and kept.is_running:
            kept = await self._cancel_elsewhere(kept)
        kept.cancel()
        return kept

    async def delete(self, id: str, owner: str | None = None) -> None:
        """Remove a response. A running one is ended if it runs in the background, and else continues for its reader.

        Raises ResponseNotFound and StoreUnavailable.
        """
        kept = await self.get(id, owner)
        self._running.pop(id, None)
        await self._delete(id, owner)
        if (running := self._background.get(id)) is not None:
            with suppress(InvalidField):  # it has just ended
                running.cancel()
        elif isinstance(kept, Record) and kept.is_running:
            self.later(self._end_elsewhere(kept))

    async def was_ended_elsewhere(self, id: str, owner: str | None) -> bool:
        """Whether another process has cancelled or deleted a response that runs here in the background."""
        if self._file is None:
            return False
        try:
            record = await self._on_file(lambda file: file.get(id, owner))
        except StoreUnavailable:
            return False
        return record is None or record.is_cancelled

    async def put(self, record: Record) -> str | None:
        """Store a record. Returns why it is not in the file; None if it is, or if there is no file."""
        if self._file is not None:
            try:
                is_within = await self._on_file(lambda file: file.put(record))
            except StoreUnavailable as error:
                self._memory.put(record)
                return error.message
            self._memory.delete(record.id, record.owner)
        else:
            is_within = self._memory.put(record)
        return None if is_within else "it is larger than GENAI_RESPONSE_STORE_BYTES"

    async def conversation(self, id: str, owner: str | None, *, param: str = "conversation_id") -> Record:
        """A conversation of this owner. Raises ConversationNotFound and StoreUnavailable."""
        record = await self._find(id, owner)
        if record is None or record.value["object"] != "conversation":
            raise ConversationNotFound(f"no conversation {quoted(id)} is kept here", param=param)
        return record

    async def change(self, id: str, owner: str | None, change: Callable[[Record], Record]) -> Record:
        """Change a conversation of this owner, and return it.

        Raises ConversationNotFound, StoreUnavailable, InvalidField if it would be too large, and whatever `change`
        raises; after each it is as it was.
        """
        await self.conversation(id, owner)
        changed = None
        if self._file is not None:
            changed = await self._on_file(lambda file: file.change(id, owner, change))
        if changed is None:
            changed = self._memory.change(id, owner, change)
        else:  # the file may have it although the disk took too long for it
            self._memory.delete(id, owner)
        if changed is None:
            raise ConversationNotFound(f"no conversation {quoted(id)} is kept here", param="conversation_id")
        return changed

    async def delete_conversation(self, id: str, owner: str | None) -> None:
        """Remove a conversation of this owner. Raises ConversationNotFound and StoreUnavailable."""
        await self.conversation(id, owner)
        await self._delete(id, owner)

    async def find_items(self, ids: Set[str], owner: str | None = None) -> dict[str, JsonObject]:
        """The items of the owner's conversations that have these ids, by id; unknown ids are left out.

        Raises StoreUnavailable.
        """
        if not ids:
            return {}
        found = self._memory.find_items(ids, owner)
        if self._file is not None:
            found |= await self._on_file(lambda file: file.find_items(ids, owner))
        for running in self._running.values():
            if running.owner == owner:
                items = [*running.items, *running.response["output"]]
                found |= {item["id"]: item for item in items if item["id"] in ids}
        return found

    async def close(self) -> None:
        """End what runs in the background, and store all that has ended."""
        for running in list(self._background.values()):
            await running.stop()
        if self._storing:
            await asyncio.wait(self._storing, timeout=_PATIENCE)
        if self._file is not None:
            self._thread.submit(self._file.close)
        # A disk that hangs does not keep the server.
        self._thread.shutdown(wait=False, cancel_futures=False)

    async def _cancel_elsewhere(self, running: Record) -> KeptResponse:
        """Have the process that runs a response end it, and return it as that has stored it."""

        def mark(found: Record) -> Record:
            return replace(found, is_cancelled=True) if found.is_running else found

        await self._on_file(lambda file: file.change(running.id, running.owner, mark))
        # Another engine than the response's may not reply.
        self.later(self._end_elsewhere(running))
        try:
            async with asyncio.timeout(_ENDING_PATIENCE):
                while True:
                    found = await self.get(running.id, running.owner)
                    if found.response["status"] not in RUNNING:
                        return found
                    await asyncio.sleep(_LOOK_EVERY)
        except TimeoutError:
            raise Unavailable(f"response {running.id} has not ended yet; try again", param="response_id") from None

    async def _end_elsewhere(self, running: Record) -> None:
        if self._end_request is not None:
            with suppress(NoEngineReady):  # then it has ended with its engine
                await self._end_request(running.request)

    async def _find(self, id: str, owner: str | None) -> Record | None:
        found = self._memory.get(id, owner)
        if found is not None or self._file is None:
            return found
        return await self._on_file(lambda file: file.get(id, owner))

    async def _delete(self, id: str, owner: str | None) -> None:
        self._memory.delete(id, owner)
        if self._file is not None:
            await self._on_file(lambda file: file.delete(id, owner))

    async def _on_file(self, job: Callable[[RecordFile], T]) -> T:
        """The result of a job in the store's thread. Raises StoreUnavailable; the log has the first of several."""
        assert self._file is not None
        try:
            if self._num_waiting >= _MOST_WAITING:
                raise StoreUnavailable(f"{_MOST_WAITING} responses wait for the disk")
            self._num_waiting += 1
            working = asyncio.get_running_loop().run_in_executor(self._thread, job, self._file)
            working.add_done_callback(self._worked)
            async with asyncio.timeout(_PATIENCE):
                found = await asyncio.shield(working)
        except TimeoutError:
            self._note(broken := StoreUnavailable(f"the disk takes longer than {_PATIENCE:g} s"))
            raise broken from None
        except StoreUnavailable as error:
            self._note(error)
            raise
        if self._is_broken:
            log.info("responses are stored in the file again")
        self._is_broken = False
        return found

    def _worked(self, working: "asyncio.Future[Any]") -> None:
        self._num_waiting -= 1
        if not working.cancelled():
            working.exception()  # asyncio would log one that nobody waits for

    def _note(self, error: StoreUnavailable) -> None:
        if not self._is_broken:
            log.warning("%s; they stay in memory (GENAI_RESPONSE_STORE_FILE)", error.message)
        self._is_broken = True
