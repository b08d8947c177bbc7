"""Finds running and stored responses, and stored conversations, for their owners. Routes have a `CallerStore`, which is
the store as the caller of a request may use it.

A response with a waiting client is known only to its API process until it ends, and is stored then. A background
response is in the store from the beginning, so that every API process finds it.
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
    """A response that is being generated in this process, as the store needs it."""

    # The conversation's items up to this response.
    items: Sequence[JsonObject]
    # Digest of the API key that the response was requested with; None without API keys.
    owner: str | None
    # The unique id of the request.
    request: str

    @property
    def response(self) -> JsonObject:
        """The response object in its current state."""

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many prompt tokens the engine has read, and how many there are in all; None once it has read them all."""

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        """The items with these ids, by id, among the items of the conversation and the output items of this response.
        Unknown ids are omitted.
        """

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The stream events after this sequence number, including those that are yet to be generated.

        Raises InvalidField if the response has no events.
        """

    def cancel(self) -> None:
        """Cancel the response. Raises InvalidField if it has already been completed, or ended otherwise than by
        cancellation.
        """

    async def stop(self) -> None:
        """End the response because the server is stopping."""


@dataclass(frozen=True)
class StoredResponse:
    """A response that was read from the store. It has the properties and methods of a running response that requests
    use.
    """

    record: StoredRecord
    # Reads the next stream events after a sequence number. Raises ResponseNotFound and StoreUnavailable.
    read_events: Callable[[int], Awaitable[Sequence[JsonObject]]]
    # None, because the prompt has been read.
    progress: None = None

    @property
    def response(self) -> JsonObject:
        """The response object. Its output items are raw JSON."""
        return self.record.value

    @property
    def is_running(self) -> bool:
        """Whether another API process is still generating the response."""
        return self.response["status"] in RUNNING

    def cancel(self) -> None:
        """Do nothing if the response was cancelled, otherwise raise InvalidField."""
        if self.response["status"] != "cancelled":
            raise not_cancelled(self.response)

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The stored stream events after this sequence number. Raises InvalidField if the events of the response are
        not stored.
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
    """The latest response on a WebSocket connection. The next request on the connection may continue this response even
    if it is not stored.
    """

    record: Record | None = None

    def forget(self, id: object) -> None:
        """Forget the latest response if its id is `id`, because a request that was to continue it has failed."""
        if self.record is not None and self.record.id == id:
            self.record = None


class ResponseStore:
    """Stores responses and conversations and finds them for their owners. `owner` is the digest of an API key
    everywhere; None without API keys. For use in the event loop only. The caller must close it.

    All methods that access the store raise StoreUnavailable if that is not possible.
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
        """Make a write that changes nothing, on behalf of an owner, to find out whether the store can be written.
        Raises StoreUnavailable.
        """
        await self._database.write(owner, lambda rows: rows.execute(f"PRAGMA user_version = {VERSION}"))

    def begin(self, running: Running) -> None:
        """Register a running response, so that other requests to this process can find it. It is not stored yet."""
        self._running[running.response["id"]] = running

    async def start_background(self, running: Running) -> None:
        """Register a running background response, and store it, so that other processes find it.

        Raises StoreUnavailable, and InvalidField if its items are too large to be stored.
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
        """Store a response that has ended, unless this process or another one has deleted it.

        Returns the reason why it could not be stored; None if it could, or if it was deleted.
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
        """Forget the running response with this id, without storing it."""
        self._running.pop(id, None)

    def later(self, storing: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine `storing` as a task that no request waits for. `close` waits for it."""
        task = asyncio.ensure_future(storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def put(self, record: Record, *, is_begun: bool = False) -> None:
        """Store a new record or, if `is_begun`, the final state of a response that was stored while it was running;
        nothing is stored if that response has been deleted.

        Raises StoreUnavailable, and InvalidField if the record is too large.
        """
        encoded = await asyncio.to_thread(EncodedRecord, record)
        put = self._records.complete if is_begun else self._records.put
        await self._database.write(record.owner, lambda rows: put(rows, encoded))
        if record.id in await self._evict(record.owner):
            raise InvalidField(None, "it exceeds this API key's share of GENAI_RESPONSE_STORE_BYTES")

    async def get(self, id: str, owner: str | None = None) -> KeptResponse:
        """The response of this owner with this id. If its API process has died, its status is `failed`.

        Raises ResponseNotFound.
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
        """A page of the input items of a response, or of the items of a conversation, with this id.

        `owner` is the digest of the API key that it must belong to; None on a server without API keys.
        Raises ResponseNotFound or ConversationNotFound, and InvalidField for an unknown item in `query.after`.
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
        """The items of a response that has ended, including its output, or the items of a conversation.

        If the items are too large to be continued, InvalidField is raised or, if `is_shortened`, the oldest turns are
        left out. Raises ResponseNotFound or ConversationNotFound.
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
        """Cancel a running response, in whichever process it runs, and return it.

        Raises ResponseNotFound, Unavailable if the response does not end in time, and InvalidField if it has ended
        otherwise than by cancellation.
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
        """Whether another process has cancelled or deleted the background response with this id, which this process
        generates.
        """
        key = Key("response", id, owner)
        try:
            record = await self._database.read(owner, lambda rows: self._records.get(rows, key))
        except StoreUnavailable:
            return False
        return record is None or record.is_cancelled

    async def delete(self, id: str, owner: str | None = None) -> None:
        """Delete a response. A background response that is running is cancelled. If a client waits for the response, it
        is generated to its end for this client, but not stored.

        Raises ResponseNotFound.
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
        """The conversation of this owner with this id, without its items. Raises ConversationNotFound."""
        key = Key("conversation", id, owner)
        return (await self._find(key, lambda rows: self._records.get(rows, key))).value

    async def conversation_item(self, id: str, owner: str | None, item: str) -> msgspec.Raw:
        """One item of a conversation as raw JSON. Raises ConversationNotFound if there is no such
        conversation or item.
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
        """Replace a conversation object by the result of `change`, and return the new object.

        Raises ConversationNotFound, and InvalidField if the new object is too large; nothing is changed then.
        """
        key = Key("conversation", id, owner)
        changed = await self._database.write(owner, lambda rows: self._records.set_value(rows, key, change))
        if changed is None:
            raise _not_found(key)
        return changed

    async def add_items(self, id: str, owner: str | None, items: Sequence[JsonObject]) -> None:
        """Append items to a conversation.

        Raises ConversationNotFound, and InvalidField if the conversation would then be too large; nothing is changed
        then.
        """
        key, added = Key("conversation", id, owner), await asyncio.to_thread(encode_items, items)
        if not await self._database.write(owner, lambda rows: self._records.append(rows, key, added)):
            raise _not_found(key)
        await self._evict(owner)

    async def remove_item(self, id: str, owner: str | None, item: str) -> JsonObject:
        """Delete an item of a conversation, and return the conversation. Raises ConversationNotFound."""
        conversation = await self.conversation(id, owner)
        key = Key("conversation", id, owner)
        if not await self._database.write(owner, lambda rows: self._records.remove_item(rows, key, item)):
            raise _no_item(id, item)
        return conversation

    async def delete_conversation(self, id: str, owner: str | None) -> None:
        """Delete a conversation of this owner. Raises ConversationNotFound."""
        await self.conversation(id, owner)
        await self._delete(id, owner)

    async def find_items(self, ids: Iterable[str], owner: str | None = None) -> dict[str, JsonObject]:
        """The owner's items with these ids, by id. Unknown ids are omitted.

        Raises InvalidField if the items are too many or too large.
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
        """Stop background responses, and wait until those that have ended are stored."""
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
        """Store the final state of a background response, and try again until the store can be written. Until then
        other requests see the response as running.
        """
        while not self._is_closing:
            await asyncio.sleep(_RETRY_EVERY)
            with suppress(StoreUnavailable, InvalidField):
                await self.put(ended, is_begun=True)
                return

    async def _evict(self, owner: str | None) -> set[str]:
        """Delete records until the limits of the store are met, each in a database job of its own. Returns the ids of
        the deleted records.

        `owner` is the owner whose record was stored last, on whose behalf the jobs run.
        """
        evicted = set()
        with suppress(StoreUnavailable):  # the next record continues the eviction
            while (id := await self._database.write(owner, lambda rows: self._records.evict(rows, owner))) is not None:
                evicted.add(id)
        return evicted

    async def _end_in_other_process(self, running: StoredRecord) -> None:
        """End the engine request of a response that another API process generates. Does nothing if the engine request
        has already ended.
        """
        if self._end_request is not None:
            with suppress(NoEngineReady, RequestNotFound):  # the request has ended, perhaps with its engine
                await self._end_request(running.request)

    async def _ended(self, id: str, owner: str | None) -> KeptResponse:
        """Wait until the process that generates the response has ended it, and return it. Raises Unavailable if this
        takes too long.
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
        """Run `job` as a database job, which reads from the record with this key, and return its result. Raises
        ResponseNotFound or ConversationNotFound if the result is None.
        """
        result = await self._database.read(key.owner, job)
        if result is None:
            raise _not_found(key)
        return result


def not_streamed(id: str) -> InvalidField:
    """The error for a request to stream the response with this id, whose events were not stored."""
    return InvalidField(
        "stream", f"must be false: response {quoted(id)} was not created with background: true and stream: true"
    )


def not_cancelled(response: JsonObject) -> InvalidField:
    """The error for a request to cancel a response that has already ended otherwise than by cancellation."""
    return InvalidField("response_id", f"{response['id']} cannot be cancelled: it is {response['status']}")


def _not_found(key: Key) -> GenaiServerError:
    error = ResponseNotFound if key.object == "response" else ConversationNotFound
    return error(f"no {key.object} {quoted(key.id)} is stored", param=f"{key.object}_id")


def _no_item(id: str, item: str) -> GenaiServerError:
    return ConversationNotFound(f"conversation {id} has no item {quoted(item)}", param="item_id")


def _page(items: Sequence[JsonObject], query: InputItemsParameters) -> Page:
    """A page of a running response's items. Raises InvalidField if `after` is not the id of one of these items."""
    items = items[::-1] if query.order == "desc" else items
    start = 0
    if query.after is not None:
        start = next((index + 1 for index, item in enumerate(items) if item["id"] == query.after), 0)
        if not start:
            raise no_such_item(query.after)
    end = start + query.limit
    return Page([(item["id"], item) for item in items[start:end]], has_more=len(items) > end)


def _decoded(history: History) -> list[JsonObject]:
    """The items of a stored history, decoded from JSON. A shortened history consists of the initial instructions, if
    there are any, and of items from a message of the user on.
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
    """What is known of a request that came over a WebSocket before the app reads it, and the latest response on that
    connection.
    """

    # The latest response on the connection.
    latest: LatestResponse = field(default_factory=LatestResponse)


@dataclass(frozen=True)
class CallerStore:
    """The store of responses, and the owner whose responses and conversations the client of a request may use."""

    store: ResponseStore
    # Digest of the caller's API key; None without API keys.
    owner: str | None
    # The unique id of the caller's request.
    request: str
    # The latest response on the same WebSocket; None for an HTTP request.
    latest: LatestResponse | None = None

    async def to_response_items(self, items: str | Sequence[InputItem], field: str) -> list[JsonObject]:
        """Convert the items `items` in the request's field `field` to the form that items have in responses. References
        to items are replaced by the stored items.

        Raises InvalidField and StoreUnavailable.
        """
        try:
            stored = await self.store.find_items(referenced_ids(items), self.owner)
        except InvalidField as error:
            raise error.at(field) from None
        return await asyncio.to_thread(to_response_items, items, stored, field=field)


async def caller_store(request: Request, owner: KeyHolderDep) -> CallerStore:
    """The store for the client of a request. A FastAPI dependency of the routes."""
    state = request_state(request.scope)
    latest = state.receipt.latest if isinstance(state.receipt, WebSocketReceipt) else None
    return CallerStore(request.app.state.responses, owner, state.record.unique_id, latest)


# The type of a route's parameter.
StoreDep = Annotated[CallerStore, Depends(caller_store)]


def not_stored(reason: str | None) -> dict[str, str]:
    """A response header with the reason why a response was not stored, or not added to its conversation; empty if there
    is no reason.
    """
    return {} if reason is None else {NOT_STORED: reason.encode("ascii", "backslashreplace").decode()}


async def page_response(page: Page, shown: Callable[[JsonObject], JsonObject] | None = None) -> Response:
    """A response with a page of items in OpenAI's format, encoded in a thread. `shown`, if given, converts each
    item.
    """

    def build() -> JsonObject:
        ids = [id for id, _ in page.items]
        items = [item for _, item in page.items]
        if shown is not None:
            items = [shown(msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item) for item in items]
        ends = {"first_id": ids[0], "last_id": ids[-1]} if ids else {"first_id": None, "last_id": None}
        return {"object": "list", "data": items, **ends, "has_more": page.has_more}

    return await built_response(build, is_long=True)
