"""Running responses, and stored responses and conversations, as their owners find them."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec

from genai_server.apis.responses.background_responses import BackgroundResponses, EndRequest, until_ended
from genai_server.apis.responses.schemas import InputItemsParameters
from genai_server.apis.responses.store_database import RecordDatabase
from genai_server.apis.responses.store_fallback import FILE_TIMEOUT, FileWithFallback
from genai_server.apis.responses.store_items import History, Key, no_such_item, references_too_large
from genai_server.apis.responses.store_records import (
    KeptResponse,
    Page,
    Record,
    Running,
    StoredResponse,
    encode_items,
    to_json,
)
from genai_server.errors import ConversationNotFound, GenaiServerError, InvalidField, ResponseNotFound, StoreUnavailable
from genai_server.http.json_response import JsonObject
from genai_server.quoted_values import quoted

# Item references in one request.
MAX_REFERENCES = 1024
# Multiple of the body limit that a request may continue or refer to: items are larger as JSON than as text.
_HISTORY_FACTOR = 8

T = TypeVar("T")


class ResponseStore:
    """Finds responses and conversations for their owners. Belongs to the event loop; must be closed."""

    def __init__(
        self,
        size: int,
        num_bytes: int,
        file: RecordDatabase | None = None,
        *,
        max_body_bytes: int = 1024 * 1024,
        max_media_body_bytes: int = 0,
        run: str = "",
        end_request: EndRequest | None = None,
    ) -> None:
        # Whether anything is stored.
        self.is_on = size > 0
        # Maximum size in bytes of the items that a request may continue or refer to.
        self._max_history = max(_HISTORY_FACTOR * max_body_bytes, max_media_body_bytes)
        self._records = FileWithFallback(RecordDatabase(None, size, num_bytes), file if size > 0 else None)
        # Keyed by id.
        self._running: dict[str, Running] = {}
        # Those of them that have no client. They stay until they end, even if they are deleted before.
        self._background: dict[str, Running] = {}
        self.background = BackgroundResponses(self._records, run, end_request)
        # Tasks that store responses without a waiting client.
        self._storing: set[asyncio.Task[Any]] = set()

    def begin(self, running: Running) -> None:
        """Add a running response."""
        self._running[running.response["id"]] = running

    async def begin_background(self, running: Running) -> None:
        """Add a running response that has no client."""
        id = running.response["id"]
        self._running[id] = self._background[id] = running
        await self.background.begin(running)

    async def finish(self, ended: Record) -> str | None:
        """Replace a running response by the ended one, unless it has been deleted.

        Returns the reason why it is not in the file; None if it is, or if there is no file.
        """
        self._background.pop(ended.id, None)
        if ended.id not in self._running:
            return None
        reason = await self._records.put(ended)
        if self._running.pop(ended.id, None) is None:
            with suppress(StoreUnavailable):
                await self._records.delete(ended.id, ended.owner)
        return reason

    def abandon(self, id: str) -> None:
        """Remove a running response."""
        self._running.pop(id, None)

    def later(self, storing: Coroutine[Any, Any, object]) -> None:
        """Store a response without making its client wait."""
        task = asyncio.ensure_future(storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def get(self, id: str, owner: str | None = None) -> KeptResponse:
        """A response of this owner. Raises ResponseNotFound and StoreUnavailable."""
        key = Key("response", id, owner)
        running = self._running_of(key)
        if running is not None:
            return running
        record = self.background.checked(await self._find(key, lambda database: database.get(key)))
        return StoredResponse(record, lambda after: self._events(key, after))

    async def page(
        self, object: Literal["response", "conversation"], id: str, owner: str | None, query: InputItemsParameters
    ) -> Page:
        """A page of a response's input items or of a conversation's items.

        Raises ResponseNotFound or ConversationNotFound, StoreUnavailable, and InvalidField.
        """
        key = Key(object, id, owner)
        running = self._running_of(key)
        if running is not None:
            return _page(running.items, query)
        return await self._find(key, lambda database: database.page(key, query))

    async def history(
        self, object: Literal["response", "conversation"], id: str, owner: str | None, *, is_shortened: bool = False
    ) -> list[JsonObject]:
        """The items of an ended response, including its output, or of a conversation.

        Raises ResponseNotFound or ConversationNotFound, StoreUnavailable, and InvalidField if it is too long to
        continue. With `is_shortened`, the oldest turns are dropped instead.
        """
        key, max_bytes = Key(object, id, owner), self._max_history // (2 if is_shortened else 1)
        running = self._running_of(key)
        if running is not None:
            return [*running.items, *running.response["output"]]
        found = await self._find(key, lambda database: database.history(key, max_bytes, is_shortened=is_shortened))
        return await asyncio.to_thread(_decoded, found)

    async def cancel(self, id: str, owner: str | None = None) -> KeptResponse:
        """Cancel a running response in whichever process it runs, and return it.

        Raises ResponseNotFound, StoreUnavailable, Unavailable if it does not end in time, and InvalidField if it has
        ended in another way.
        """
        kept = await self.get(id, owner)
        if isinstance(kept, StoredResponse) and kept.record.is_running:
            await self.background.mark_cancelled(kept.record)
            # Runs in a task because other engines than the response's may not reply.
            self.later(self.background.end_elsewhere(kept.record))
            kept = await until_ended(id, lambda: self.get(id, owner))
        kept.cancel()
        return kept

    async def delete(self, id: str, owner: str | None = None) -> None:
        """Delete a response. A background response is cancelled; one with a client continues for it.

        Raises ResponseNotFound and StoreUnavailable.
        """
        kept = await self.get(id, owner)
        self._running.pop(id, None)
        await self._records.delete(id, owner)
        if (running := self._background.get(id)) is not None:
            with suppress(InvalidField):  # it has just ended
                running.cancel()
        elif isinstance(kept, StoredResponse) and kept.record.is_running:
            self.later(self.background.end_elsewhere(kept.record))

    async def put(self, record: Record) -> str | None:
        """Store a record. Returns the reason why it is not in the file; None if it is, or if there is no file."""
        return await self._records.put(record)

    async def conversation(self, id: str, owner: str | None) -> JsonObject:
        """A conversation of this owner, without its items. Raises ConversationNotFound and StoreUnavailable."""
        key = Key("conversation", id, owner)
        return (await self._find(key, lambda database: database.get(key))).value

    async def conversation_item(self, id: str, owner: str | None, item: str) -> msgspec.Raw:
        """One item of a conversation. Raises ConversationNotFound and StoreUnavailable."""
        key = Key("conversation", id, owner)
        found = await self._records.find(key, lambda database: database.item(key, item))
        if found is None:
            await self.conversation(id, owner)
            raise _no_item(id, item)
        return msgspec.Raw(found)

    async def update_conversation(
        self, id: str, owner: str | None, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        """Change a conversation's value and return it. Raises ConversationNotFound, StoreUnavailable and InvalidField,
        without a change.
        """
        key = Key("conversation", id, owner)
        changed = await self._records.change(key, lambda database: database.set_value(key, change))
        if changed is None:
            raise _not_found(key)
        return changed

    async def add_items(self, id: str, owner: str | None, items: Sequence[JsonObject]) -> None:
        """Append items to a conversation.

        Raises ConversationNotFound, StoreUnavailable, and InvalidField if the conversation would be too large, without
        a change.
        """
        key, rows = Key("conversation", id, owner), await asyncio.to_thread(encode_items, items)
        if not await self._records.change(key, lambda database: database.append(key, rows)):
            raise _not_found(key)
        await self._records.evict(owner)

    async def remove_item(self, id: str, owner: str | None, item: str) -> JsonObject:
        """Delete an item of a conversation; returns the conversation. Raises ConversationNotFound, StoreUnavailable."""
        conversation = await self.conversation(id, owner)
        key = Key("conversation", id, owner)
        if not await self._records.change(key, lambda database: database.remove_item(key, item)):
            raise _no_item(id, item)
        return conversation

    async def delete_conversation(self, id: str, owner: str | None) -> None:
        """Remove a conversation of this owner. Raises ConversationNotFound and StoreUnavailable."""
        await self.conversation(id, owner)
        await self._records.delete(id, owner)

    async def find_items(self, ids: Iterable[str], owner: str | None = None) -> dict[str, JsonObject]:
        """The owner's items with these ids, keyed by id. Unknown ids are omitted.

        Raises StoreUnavailable, and InvalidField for too many or too large items.
        """
        wanted = Counter(ids)
        if not wanted:
            return {}
        if wanted.total() > MAX_REFERENCES:
            raise InvalidField(
                None,
                "a request may have at most",
                limit=f"{MAX_REFERENCES} items of type item_reference",
                given=wanted.total(),
            )
        max_bytes = self._max_history
        rows = await self._records.find_all(owner, lambda database: database.find_items(wanted, owner, max_bytes))
        for running in self._running.values():
            if running.owner == owner:
                rows |= {id: to_json(item) for id, item in running.find_items(wanted.keys()).items()}
        if sum(wanted[id] * len(row) for id, row in rows.items()) > max_bytes:
            raise references_too_large(max_bytes)
        return await asyncio.to_thread(lambda: {id: json.loads(row) for id, row in rows.items()})

    async def close(self) -> None:
        """Stop background responses and finish storing ended ones."""
        for running in list(self._background.values()):
            await running.stop()
        if self._storing:
            await asyncio.wait(self._storing, timeout=FILE_TIMEOUT)
        await self._records.close()

    def _running_of(self, key: Key) -> Running | None:
        running = self._running.get(key.id) if key.object == "response" else None
        return running if running is not None and running.owner == key.owner else None

    async def _events(self, key: Key, after: int) -> Sequence[JsonObject]:
        events = await self._find(key, lambda database: database.events(key, after))
        return await asyncio.to_thread(lambda: [json.loads(event) for event in events])

    async def _find(self, key: Key, job: Callable[[RecordDatabase], T | None]) -> T:
        """Read from a record. Raises ResponseNotFound, ConversationNotFound and StoreUnavailable."""
        found = await self._records.find(key, job)
        if found is None:
            raise _not_found(key)
        return found


def _not_found(key: Key) -> GenaiServerError:
    error = ResponseNotFound if key.object == "response" else ConversationNotFound
    return error(f"no {key.object} {quoted(key.id)} is stored", param=f"{key.object}_id")


def _no_item(id: str, item: str) -> GenaiServerError:
    return ConversationNotFound(f"conversation {id} has no item {quoted(item)}", param="item_id")


def _page(items: Sequence[JsonObject], query: InputItemsParameters) -> Page:
    """A page of a running response's items. Raises InvalidField if `after` is not one of them."""
    items = items[::-1] if query.order == "desc" else items
    start = 0
    if query.after is not None:
        start = next((place + 1 for place, item in enumerate(items) if item["id"] == query.after), 0)
        if not start:
            raise no_such_item(query.after)
    end = start + query.limit
    return Page([(item["id"], item) for item in items[start:end]], has_more=len(items) > end)


def _decoded(history: History) -> list[JsonObject]:
    """Decode the items. A shortened history keeps initial instructions and continues from a user's message."""
    items = [json.loads(item) for item in history.items]
    if history.first is None:
        return items
    first = json.loads(history.first)
    start = next((place for place, item in enumerate(items) if item.get("role") == "user"), len(items))
    return [*([first] if first.get("role") in ("system", "developer") else []), *items[start:]]
