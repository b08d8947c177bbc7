"""Responses and conversations as the store has them: running in this process, or stored as a head and rows of items."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import msgspec

from genai_server.errors import InvalidField
from genai_server.http.json_response import JsonObject
from genai_server.quoted_values import quoted

# The states of a response that has not ended.
RUNNING = ("queued", "in_progress")
# Kinds of rows: input or conversation items, output items, and stream events.
ITEM, OUTPUT, EVENT = range(3)


@dataclass(frozen=True)
class Record:
    """A response or a conversation to be stored."""

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
        """The record's id."""
        id: str = self.value["id"]
        return id


@dataclass(frozen=True)
class Row:
    """One item or event."""

    kind: int
    # None for an event.
    id: str | None
    json: bytes


@dataclass(frozen=True)
class EncodedRecord:
    """A record encoded for the database."""

    record: Record
    # The value as JSON, with an empty output.
    head: bytes
    rows: list[Row]

    @property
    def size(self) -> int:
        """Size of the JSON in bytes."""
        return len(self.head) + size_of(self.rows)


@dataclass(frozen=True)
class StoredRecord:
    """A record read from the database, without its items and events. A response's output items are raw JSON."""

    value: JsonObject
    owner: str | None
    has_events: bool = False
    # See Record.
    run: str = ""
    pid: int = 0
    request: str = ""
    # Whether another API process has cancelled a running response.
    is_cancelled: bool = False

    @property
    def is_running(self) -> bool:
        """Whether it is a response that has not ended."""
        return self.value.get("status") in RUNNING


class Running(Protocol):
    """A response running in this process."""

    # The conversation's items up to this response.
    items: Sequence[JsonObject]
    # Digest of the API key that the response was requested with; None without API keys.
    owner: str | None
    # The unique id of the request.
    request: str

    @property
    def response(self) -> JsonObject:
        """The response in its current state."""

    @property
    def progress(self) -> tuple[int, int] | None:
        """Prompt tokens processed and their total number; None when all have been processed."""

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        """The conversation and output items with these ids, keyed by id."""

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The stream's events after this sequence number, as they are generated.

        Raises InvalidField if the response has no events.
        """

    def cancel(self) -> None:
        """Cancel the response. Raises InvalidField if it has ended in another way."""

    async def stop(self) -> None:
        """End the response because the server is stopping."""


@dataclass(frozen=True)
class StoredResponse:
    """A stored response, with the same methods for its clients as a running one."""

    record: StoredRecord
    # Reads the next stream events after a sequence number. Raises ResponseNotFound and StoreUnavailable.
    read_events: Callable[[int], Awaitable[Sequence[JsonObject]]]
    # Its prompt has been processed.
    progress: None = None

    @property
    def response(self) -> JsonObject:
        """The response. Its output items are raw JSON."""
        return self.record.value

    def cancel(self) -> None:
        """Do nothing if the response was cancelled; else raise InvalidField."""
        if self.response["status"] != "cancelled":
            raise not_cancelled(self.response)

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The stream's events after this sequence number. Raises InvalidField if none are stored."""
        if not self.record.has_events:
            raise not_streamed(self.response["id"])
        return self._events(-1 if after is None else after)

    async def _events(self, after: int) -> AsyncGenerator[JsonObject]:
        while events := await self.read_events(after):
            for event in events:
                yield event
            after += len(events)


KeptResponse = Running | StoredResponse


@dataclass(frozen=True)
class Page:
    """One page of items, in the requested order."""

    # Pairs of id and item.
    items: list[tuple[str, JsonObject | msgspec.Raw]]
    has_more: bool


@dataclass
class LatestResponse:
    """The latest response on a WebSocket. The next one there may continue it even if it is not stored."""

    record: Record | None = None

    def forget(self, id: object) -> None:
        """Forget this response because a turn could not continue it."""
        if self.record is not None and self.record.id == id:
            self.record = None


def encode_record(record: Record) -> EncodedRecord:
    """Encode a record as JSON."""
    output = record.value.get("output")
    head = record.value if output is None else {**record.value, "output": []}
    events = [Row(EVENT, None, to_json(event)) for event in record.events or ()]
    rows = [*encode_items(record.items), *encode_items(output or (), OUTPUT), *events]
    return EncodedRecord(record, to_json(head), rows)


def encode_items(items: Iterable[JsonObject], kind: int = ITEM) -> list[Row]:
    """Encode items as rows."""
    return [Row(kind, item["id"], to_json(item)) for item in items]


def size_of(rows: Iterable[Row]) -> int:
    """Size of the rows' JSON in bytes."""
    return sum(len(row.json) for row in rows)


def to_json(part: JsonObject) -> bytes:
    """Encode an object as JSON; lone surrogates become escapes."""
    try:
        return msgspec.json.encode(part)
    except UnicodeEncodeError:
        return json.dumps(part, ensure_ascii=False).encode(errors="backslashreplace")


def not_streamed(id: str) -> InvalidField:
    """The error for a stream that was not stored."""
    return InvalidField(
        "stream", f"must be false: response {quoted(id)} was not created with background: true and stream: true"
    )


def not_cancelled(response: JsonObject) -> InvalidField:
    """The error for cancelling a response that has ended in another way."""
    return InvalidField("response_id", f"{response['id']} cannot be cancelled: it is {response['status']}")
