"""Keeps the responses and conversations of the Responses API and finds them for their owners: responses that are being
generated in this process in memory, and all others in a database.

`ResponseStore` is the store of an API process. Routes have a `CallerStore`, which adds the owner whose data the client
of a request may use. A response for which a client waits is known only to its own API process until it ends, and is
stored then. A background response is in the database from the beginning, so that every API process finds it.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
import psutil
from fastapi import Depends, Request, Response

from genai_server.apis.responses.item_schemas import InputItem
from genai_server.apis.responses.items import referenced_ids, to_response_items
from genai_server.apis.responses.response import error_of
from genai_server.apis.responses.schemas import InputItemsParameters
from genai_server.errors import (
    ConversationNotFound,
    GenaiServerError,
    InvalidField,
    NoEngineReady,
    RequestNotFound,
    ResponseNotFound,
    ServerStopping,
    StoreUnavailable,
    Unavailable,
    quoted,
)
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.middleware.authentication import KeyHolderDep
from genai_server.http.request_state import Receipt, request_state
from genai_server.store.database import TIMEOUT, VERSION, Database, Do
from genai_server.store.records import (
    EncodedRecord,
    History,
    Key,
    Page,
    Record,
    Records,
    StoredRecord,
    encode_items,
    no_such_item,
    references_too_large,
    to_json,
)

# The states of a response that has not ended.
RUNNING = ("queued", "in_progress")
# Item references in one request.
MAX_REFERENCES = 1024
# Multiple of the body limit that a request may continue or refer to: items are larger as JSON than as text.
_HISTORY_FACTOR = 8
# Seconds that another process may take to end its response: its engine first completes a forward pass.
_CANCEL_TIMEOUT = 20.0
# Seconds between two checks whether it has ended.
_CHECK_EVERY = 0.05
# Seconds between two attempts to complete a background response in a store that has failed.
_RETRY_EVERY = 1.0

T = TypeVar("T")
# Ends the engine request with this unique id, in whichever API process. Raises NoEngineReady and RequestNotFound.
EndRequest = Callable[[str], Awaitable[object]]


class Running(Protocol):
    """The interface of a response that is being generated in this process, as the store and the routes use it. Its
    implementation is RunningResponse.
    """

    # The conversation's items up to this response.
    items: Sequence[JsonObject]
    # Digest of the API key that the response was requested with; None without API keys.
    owner: str | None
    # The unique id of the request.
    request: str

    @property
    def response(self) -> JsonObject:
        """Return the response object in its current state."""

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return how many tokens of the prompt the engine has read, and how many there are in all. None once it has
        read the whole prompt.
        """

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        """Return the items of this response whose ids are in `ids`, keyed by id. Both its input items, with those of
        earlier turns, and its output items are searched. Unknown ids are omitted.
        """

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """Return a generator of the stream events of the response, including those that are yet to be generated. If
        `after` is not None, it begins after the event with this sequence number.

        Raises InvalidField if the events are not kept.
        """

    def cancel(self) -> None:
        """End the response with the status cancelled and the answer so far. Does nothing if it has already been
        cancelled. Raises InvalidField if it has ended in another way.
        """

    async def stop(self) -> None:
        """End a background response because the server is stopping, and wait until it has ended. Does nothing for a
        response with a waiting client.
        """


@dataclass(frozen=True)
class StoredResponse:
    """A response that was read from the database: it has ended, or another API process is still generating it. It has
    the properties and methods of a running response that routes use, so that they treat both alike.
    """

    record: StoredRecord
    # Reads the next stream events after a sequence number. Raises ResponseNotFound and StoreUnavailable.
    read_events: Callable[[int], Awaitable[Sequence[JsonObject]]]
    # None, because the prompt has been read.
    progress: None = None

    @property
    def response(self) -> JsonObject:
        """Return the response object. Its output items are raw JSON (msgspec.Raw) and not decoded."""
        return self.record.value

    @property
    def is_running(self) -> bool:
        """Return whether the response had not ended when it was read, because another API process is generating it."""
        return self.response["status"] in RUNNING

    def cancel(self) -> None:
        """Check that the response has been cancelled. Raises InvalidField if it has another status, since it can then
        not be cancelled any more.
        """
        if self.response["status"] != "cancelled":
            raise not_cancelled(self.response)

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """Return a generator of the stored stream events of the response. If `after` is not None, it begins after the
        event with this sequence number.

        Raises InvalidField if the events are not stored, because the response was not created with `background` and
        `stream`.
        """
        if not self.record.has_events:
            raise not_streamed(self.response["id"])
        return self._events(-1 if after is None else after)

    async def _events(self, after: int) -> AsyncGenerator[JsonObject]:
        while events := await self.read_events(after):
            for event in events:
                yield event
            after += len(events)


KeptResponse = Running | StoredResponse


@dataclass
class LatestResponse:
    """The latest response on a WebSocket connection, kept in memory. The next request on the same connection may
    continue this response even if it is not stored. `record` is None as long as the connection has no response that can
    be continued.
    """

    record: Record | None = None

    def forget(self, id: object) -> None:
        """Remove the latest response if its id is `id`, because a request that was to continue it has failed. Does
        nothing if the id is another one.
        """
        if self.record is not None and self.record.id == id:
            self.record = None


class ResponseStore:
    """Stores the responses and conversations of an API process in a database, and keeps track of the responses that the
    process is generating. The API process creates one and must close it. Its methods are for use in the event loop
    only.

    The argument `owner` is always the digest of the API key to which a response or conversation belongs; None on a
    server without API keys. What belongs to another owner is treated as if it did not exist. All methods that access
    the database raise StoreUnavailable if the database cannot be read or written.
    """

    def __init__(
        self,
        database: Database,
        max_records: int,
        max_bytes: int,
        *,
        max_body_bytes: int = 1024 * 1024,
        max_media_body_bytes: int = 0,
        run: str = "",
        end_request: EndRequest | None = None,
    ) -> None:
        # Whether anything is stored.
        self.is_on = max_records > 0
        self._database = database
        self._records = Records(max_records, max_bytes)
        # Maximum size in bytes of the items that a request may continue or refer to.
        self._max_history = max(_HISTORY_FACTOR * max_body_bytes, max_media_body_bytes)
        # Identifies this start of the server: running responses of other starts have ended.
        self._run = run
        # None if there is no other API process.
        self._end_request = end_request
        # Running responses, by id.
        self._running: dict[str, Running] = {}
        # Those running responses that have no client. A response stays here until it ends, even if it is deleted.
        self._background: dict[str, Running] = {}
        # Tasks that store responses without a waiting client.
        self._storing: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    async def check(self, owner: str | None) -> None:
        """Find out whether the database can be written, by a write for `owner` that changes nothing. Raises
        StoreUnavailable if not. To be called before work whose result is to be stored.
        """
        await self._database.write(owner, lambda rows: rows.execute(f"PRAGMA user_version = {VERSION}"))

    def begin(self, running: Running) -> None:
        """Register a response that this process has begun to generate, so that other requests to the process can find
        it. It is not written to the database yet.
        """
        self._running[running.response["id"]] = running

    async def start_background(self, running: Running) -> None:
        """Register a background response that this process has begun to generate, and write it to the database, so that
        other API processes find it, too.

        Raises StoreUnavailable, and InvalidField if its items are too large to be stored. The response is not
        registered then.
        """
        id = running.response["id"]
        self._running[id] = self._background[id] = running
        try:
            await self.put(
                Record(
                    running.response,
                    running.items,
                    running.owner,
                    run=self._run,
                    pid=os.getpid(),
                    request=running.request,
                )
            )
        except BaseException:
            del self._running[id], self._background[id]
            raise

    async def finish(self, ended: Record) -> str | None:
        """Store a response that has ended, and remove it from the running ones. It is not stored if any process has
        deleted it. A background response whose final state cannot be written now is tried again later.

        Returns the reason why the response could not be stored; None if it was stored or had been deleted.
        """
        # Before the first await: one that is deleted in the meantime must not be stored as a new one.
        is_background = self._background.pop(ended.id, None) is not None
        if ended.id not in self._running:
            return None
        reason = None
        try:
            await self.put(ended, is_begun=is_background)
        except (InvalidField, StoreUnavailable) as error:
            error.__traceback__ = None  # its frames refer to the record, and to the error
            reason = error.message
            if isinstance(error, InvalidField):
                with suppress(StoreUnavailable):
                    await self._delete(ended.id, ended.owner)
            elif is_background:
                self.later(self._complete(ended))
        if self._running.pop(ended.id, None) is None:
            with suppress(StoreUnavailable):
                await self._delete(ended.id, ended.owner)
        return reason

    def abandon(self, id: str) -> None:
        """Remove the running response with the id `id` without storing it, because its client has left. An unknown id
        is ignored.
        """
        self._running.pop(id, None)

    def later(self, storing: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine `storing`, which stores a response, as a task that no request waits for. `close` waits for
        this task.
        """
        task = asyncio.ensure_future(storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def put(self, record: Record, *, is_begun: bool = False) -> None:
        """Write a record, which is a response or conversation, to the database. If `is_begun`, it is the final state of
        a background response that is already there; it is not written if that response has been deleted. Old records
        are deleted if the store is full.

        Raises StoreUnavailable, and InvalidField if the record is too large.
        """
        encoded = await asyncio.to_thread(EncodedRecord, record)
        put = self._records.complete if is_begun else self._records.put
        await self._database.write(record.owner, lambda rows: put(rows, encoded))
        if record.id in await self._evict(record.owner):
            raise InvalidField(None, "it exceeds this API key's share of GENAI_RESPONSE_STORE_BYTES")

    async def get(self, id: str, owner: str | None = None) -> KeptResponse:
        """Return the response with the id `id` of the owner `owner`, either running in this process or read from the
        database. A response whose API process has died while it generated the response has the status failed.

        Raises ResponseNotFound if there is no such response, and StoreUnavailable.
        """
        key = Key("response", id, owner)
        running = self._running_of(key)
        if running is not None:
            return running
        record = await self._find(key, lambda rows: self._records.get(rows, key))
        if record.value["status"] in RUNNING and (record.run != self._run or not psutil.pid_exists(record.pid)):
            error = error_of(ServerStopping("the server or its API process ended while the response was running"))
            record = replace(record, value={**record.value, "status": "failed", "error": error})
        return StoredResponse(record, lambda after: self._events(key, after))

    async def page(
        self, object: Literal["response", "conversation"], id: str, owner: str | None, query: InputItemsParameters
    ) -> Page:
        """Return a page of items: of the input items of the response with the id `id`, or of the items of the
        conversation with this id. `object` says which of the two it is, and `query` selects the page.

        `owner` is the digest of the API key to which the response or conversation must belong; None on a server without
        API keys. Raises ResponseNotFound, ConversationNotFound or StoreUnavailable, and InvalidField if `query.after`
        is the id of no item.
        """
        key = Key(object, id, owner)
        running = self._running_of(key)
        if running is not None:
            return _page(running.items, query)
        return await self._find(
            key,
            lambda rows: self._records.page(rows, key, order=query.order, after=query.after, limit=query.limit),
        )

    async def history(
        self, object: Literal["response", "conversation"], id: str, owner: str | None, *, is_shortened: bool = False
    ) -> list[JsonObject]:
        """Return all items that a request continues: the items of the conversation with the id `id`, or the input items
        and output items of the response with this id, which must have ended. `object` says which of the two it is.

        If the items are too large for one request, the oldest turns are left out if `is_shortened`; otherwise
        InvalidField is raised. Also raises ResponseNotFound, ConversationNotFound and StoreUnavailable.
        """
        key, max_bytes = Key(object, id, owner), self._max_history // (2 if is_shortened else 1)
        running = self._running_of(key)
        if running is not None:
            return [*running.items, *running.response["output"]]
        items = await self._find(
            key, lambda rows: self._records.history(rows, key, max_bytes, is_shortened=is_shortened)
        )
        return await asyncio.to_thread(_decoded, items)

    async def cancel(self, id: str, owner: str | None = None) -> KeptResponse:
        """Cancel a running response, in whichever API process it runs, and return it when it has ended. A response that
        has already been cancelled is returned unchanged.

        Raises ResponseNotFound, Unavailable if another process does not end the response within 20 seconds, and
        InvalidField if the response has ended in another way.
        """
        response = await self.get(id, owner)
        if isinstance(response, StoredResponse) and response.is_running:
            key = Key("response", id, owner)
            await self._database.write(owner, lambda rows: self._records.mark_cancelled(rows, key))
            # Runs in a task because other engines than the response's may not reply.
            self.later(self._end_in_other_process(response.record))
            response = await self._ended(id, owner)
        response.cancel()
        return response

    async def was_ended_by_other_process(self, id: str, owner: str | None) -> bool:
        """Return whether another API process has cancelled or deleted the background response with the id `id`, which
        this process is generating. The result is False if the database cannot be read.
        """
        key = Key("response", id, owner)
        try:
            record = await self._database.read(owner, lambda rows: self._records.get(rows, key))
        except StoreUnavailable:
            return False
        return record is None or record.is_cancelled

    async def delete(self, id: str, owner: str | None = None) -> None:
        """Delete the response with the id `id`. A background response that is still running is cancelled. A running
        response for which a client waits is generated to its end for this client, but not stored.

        Raises ResponseNotFound and StoreUnavailable.
        """
        response = await self.get(id, owner)
        running = self._running.pop(id, None)
        try:
            await self._delete(id, owner)
        except StoreUnavailable:
            if running is not None and id in self._background:
                self._running[id] = running
            raise
        if id in self._background:
            with suppress(InvalidField):  # it has just ended
                self._background[id].cancel()
        elif isinstance(response, StoredResponse) and response.is_running:
            self.later(self._end_in_other_process(response.record))

    async def conversation(self, id: str, owner: str | None) -> JsonObject:
        """Return the object of the conversation with the id `id` of the owner `owner`, without its items. Raises
        ConversationNotFound and StoreUnavailable.
        """
        key = Key("conversation", id, owner)
        return (await self._find(key, lambda rows: self._records.get(rows, key))).value

    async def conversation_item(self, id: str, owner: str | None, item: str) -> msgspec.Raw:
        """Return the item with the id `item` of the conversation with the id `id`, as raw JSON. Raises
        ConversationNotFound if there is no such conversation or the conversation has no such item.
        """
        key = Key("conversation", id, owner)
        row = await self._database.read(owner, lambda rows: self._records.item(rows, key, item))
        if row is None:
            await self.conversation(id, owner)
            raise _no_item(id, item)
        return msgspec.Raw(row)

    async def update_conversation(
        self, id: str, owner: str | None, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        """Replace the object of the conversation with the id `id` by the result of `change`, which is called with the
        old object. Returns the new object.

        Raises ConversationNotFound, and InvalidField if the new object is too large. Nothing is changed in these cases.
        """
        key = Key("conversation", id, owner)
        changed = await self._database.write(owner, lambda rows: self._records.set_value(rows, key, change))
        if changed is None:
            raise _not_found(key)
        return changed

    async def add_items(self, id: str, owner: str | None, items: Sequence[JsonObject]) -> None:
        """Append `items` to the conversation with the id `id`. Old records are deleted if the store is full afterwards.

        Raises ConversationNotFound, and InvalidField if the conversation would become too large. Nothing is changed in
        these cases.
        """
        key, added = Key("conversation", id, owner), await asyncio.to_thread(encode_items, items)
        if not await self._database.write(owner, lambda rows: self._records.append(rows, key, added)):
            raise _not_found(key)
        await self._evict(owner)

    async def remove_item(self, id: str, owner: str | None, item: str) -> JsonObject:
        """Delete the item with the id `item` from the conversation with the id `id`. Returns the conversation object,
        without its items. Raises ConversationNotFound if there is no such conversation or item.
        """
        conversation = await self.conversation(id, owner)
        key = Key("conversation", id, owner)
        if not await self._database.write(owner, lambda rows: self._records.remove_item(rows, key, item)):
            raise _no_item(id, item)
        return conversation

    async def delete_conversation(self, id: str, owner: str | None) -> None:
        """Delete the conversation with the id `id` of the owner `owner` and its items. Raises ConversationNotFound."""
        await self.conversation(id, owner)
        await self._delete(id, owner)

    async def find_items(self, ids: Iterable[str], owner: str | None = None) -> dict[str, JsonObject]:
        """Return the items with the ids `ids`, keyed by id, from all responses and conversations of the owner, also
        from running responses. It serves requests that refer to stored items. Unknown ids are omitted.

        Raises StoreUnavailable, and InvalidField if `ids` has more than 1024 ids or the items are too large for one
        request. Repeated ids count repeatedly.
        """
        counts = Counter(ids)
        if not counts:
            return {}
        if counts.total() > MAX_REFERENCES:
            raise InvalidField(
                None,
                "a request may have at most",
                limit=f"{MAX_REFERENCES} items of type item_reference",
                given=counts.total(),
            )
        max_bytes = self._max_history
        items = await self._database.read(owner, lambda rows: self._records.find_items(rows, counts, owner, max_bytes))
        for running in self._running.values():
            if running.owner == owner:
                items |= {id: to_json(item) for id, item in running.find_items(counts.keys()).items()}
        if sum(counts[id] * len(item) for id, item in items.items()) > max_bytes:
            raise references_too_large(max_bytes)
        return await asyncio.to_thread(lambda: {id: json.loads(item) for id, item in items.items()})

    async def close(self) -> None:
        """End the background responses of this process because the server stops, and wait a limited time until all
        responses that have ended are stored.
        """
        self._is_closing = True
        for running in list(self._background.values()):
            await running.stop()
        if self._storing:
            await asyncio.wait(self._storing, timeout=TIMEOUT)

    def _running_of(self, key: Key) -> Running | None:
        running = self._running.get(key.id) if key.object == "response" else None
        return running if running is not None and running.owner == key.owner else None

    async def _delete(self, id: str, owner: str | None) -> None:
        await self._database.write(owner, lambda rows: self._records.delete(rows, id, owner))

    async def _complete(self, ended: Record) -> None:
        """Store the final state of a background response that could not be written when it ended. Tries again each
        second until the database can be written or the store is closed. Until then other requests see the response as
        running.
        """
        while not self._is_closing:
            await asyncio.sleep(_RETRY_EVERY)
            with suppress(StoreUnavailable, InvalidField):
                await self.put(ended, is_begun=True)
                return

    async def _evict(self, owner: str | None) -> set[str]:
        """Delete records until the store is within its limits of number and size: always the least recently used record
        of the owner that takes most of the store. Each deletion is a database job of its own, so that other requests do
        not wait long. Returns the ids of the deleted records.

        `owner` is the owner of the record that was stored last; the jobs run on its behalf. An error of the database
        only ends the deletion, which goes on when the next record is stored.
        """
        evicted = set()
        with suppress(StoreUnavailable):  # the next record continues the eviction
            while (id := await self._database.write(owner, lambda rows: self._records.evict(rows, owner))) is not None:
                evicted.add(id)
        return evicted

    async def _end_in_other_process(self, running: StoredRecord) -> None:
        """End the generation of the response `running`, which another API process has requested from an engine. Does
        nothing if the generation has already ended.
        """
        if self._end_request is not None:
            with suppress(NoEngineReady, RequestNotFound):  # the request has ended, perhaps with its engine
                await self._end_request(running.request)

    async def _ended(self, id: str, owner: str | None) -> KeptResponse:
        """Wait until the other API process that generates the response with the id `id` has ended it. Returns the ended
        response. Raises Unavailable if this takes more than 20 seconds, and ResponseNotFound.
        """
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                while True:
                    record = await self.get(id, owner)
                    if record.response["status"] not in RUNNING:
                        return record
                    await asyncio.sleep(_CHECK_EVERY)
        except TimeoutError:
            raise Unavailable(f"response {id} has not ended yet; try again", param="response_id") from None

    async def _events(self, key: Key, after: int) -> Sequence[JsonObject]:
        events = await self._find(key, lambda rows: self._records.events(rows, key, after))
        return await asyncio.to_thread(lambda: [json.loads(event) for event in events])

    async def _find(self, key: Key, job: Do[T | None]) -> T:
        """Run `job`, a function that reads from the database, for the record with the key `key`, and return its result.
        Raises ResponseNotFound or ConversationNotFound if the result is None, which means that there is no such record,
        and StoreUnavailable.
        """
        result = await self._database.read(key.owner, job)
        if result is None:
            raise _not_found(key)
        return result


def not_streamed(id: str) -> InvalidField:
    """Return the error for a request to stream the response with the id `id`, whose events were not kept because it was
    not created with `background` and `stream`. The caller raises it.
    """
    return InvalidField(
        "stream", f"must be false: response {quoted(id)} was not created with background: true and stream: true"
    )


def not_cancelled(response: JsonObject) -> InvalidField:
    """Return the error for a request to cancel `response`, which has already ended as completed, incomplete or failed.
    The caller raises it.
    """
    return InvalidField("response_id", f"{response['id']} cannot be cancelled: it is {response['status']}")


def _not_found(key: Key) -> GenaiServerError:
    error = ResponseNotFound if key.object == "response" else ConversationNotFound
    return error(f"no {key.object} {quoted(key.id)} is stored", param=f"{key.object}_id")


def _no_item(id: str, item: str) -> GenaiServerError:
    return ConversationNotFound(f"conversation {id} has no item {quoted(item)}", param="item_id")


def _page(items: Sequence[JsonObject], query: InputItemsParameters) -> Page:
    """Return the page that `query` selects from `items`, all input items of a running response in the order of the
    conversation. Raises InvalidField if `query.after` is not the id of one of the items.
    """
    items = items[::-1] if query.order == "desc" else items
    start = 0
    if query.after is not None:
        start = next((index + 1 for index, item in enumerate(items) if item["id"] == query.after), 0)
        if not start:
            raise no_such_item(query.after)
    end = start + query.limit
    return Page([(item["id"], item) for item in items[start:end]], has_more=len(items) > end)


def _decoded(history: History) -> list[JsonObject]:
    """Return the items of a history that was read from the database, decoded from JSON. If the beginning of the history
    was left out, the result has the initial instructions, if there are any, and then the items from a message of the
    user on, so that it begins with a whole turn.
    """
    items = [json.loads(item) for item in history.items]
    if history.first is None:
        return items
    first = json.loads(history.first)
    start = next((index for index, item in enumerate(items) if item.get("role") == "user"), len(items))
    return [*([first] if first.get("role") in ("system", "developer") else []), *items[start:]]


# Response header with the reason why a response was not stored, or not added to its conversation.
NOT_STORED = "x-genai-not-stored"


@dataclass(frozen=True)
class WebSocketReceipt(Receipt):
    """What the WebSocket endpoint tells the app about a request that it has received in a message: the data of every
    Receipt, such as the time of arrival, and the latest response on the same connection.
    """

    # The latest response on the connection.
    latest: LatestResponse = field(default_factory=LatestResponse)


@dataclass(frozen=True)
class CallerStore:
    """The store of responses as the client of one request may use it: the store, and the owner to whom the client's
    responses and conversations belong. FastAPI gives routes one for each request (`StoreDep`).
    """

    store: ResponseStore
    # Digest of the caller's API key; None without API keys.
    owner: str | None
    # The unique id of the caller's request.
    request: str
    # The latest response on the same WebSocket; None for an HTTP request.
    latest: LatestResponse | None = None

    async def to_response_items(self, items: str | Sequence[InputItem], field: str) -> list[JsonObject]:
        """Convert the validated input items of the request to the form that responses contain. References to stored
        items are replaced by these items, which must belong to the client. `field` is the request's field that has
        `items`, for error messages.

        Raises InvalidField for a reference to an unknown item and for encrypted content that this server has not
        created, and StoreUnavailable.
        """
        try:
            stored = await self.store.find_items(referenced_ids(items), self.owner)
        except InvalidField as error:
            raise error.at(field) from None
        return await asyncio.to_thread(to_response_items, items, stored, field=field)


async def caller_store(request: Request, owner: KeyHolderDep) -> CallerStore:
    """Return the store as the client of `request` may use it. FastAPI calls this as a dependency of the routes; `owner`
    is the digest of the request's API key, or None without API keys.
    """
    state = request_state(request.scope)
    latest = state.receipt.latest if isinstance(state.receipt, WebSocketReceipt) else None
    return CallerStore(request.app.state.responses, owner, state.record.unique_id, latest)


# The type of a route's parameter.
StoreDep = Annotated[CallerStore, Depends(caller_store)]


def not_stored(reason: str | None) -> dict[str, str]:
    """Return the header that tells the client why its response was not stored or not added to its conversation, for the
    HTTP response. `reason` is the reason; if it is None, the result is empty.
    """
    return {} if reason is None else {NOT_STORED: reason.encode("ascii", "backslashreplace").decode()}


async def page_response(page: Page, shown: Callable[[JsonObject], JsonObject] | None = None) -> Response:
    """Return the HTTP response for a page of items, in OpenAI's format of lists. It is encoded in a thread, because it
    may be large. `shown`, if it is not None, converts each item before.
    """

    def build() -> JsonObject:
        ids = [id for id, _ in page.items]
        items = [item for _, item in page.items]
        if shown is not None:
            items = [shown(msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item) for item in items]
        ends = {"first_id": ids[0], "last_id": ids[-1]} if ids else {"first_id": None, "last_id": None}
        return {"object": "list", "data": items, **ends, "has_more": page.has_more}

    return await built_response(build, is_long=True)
