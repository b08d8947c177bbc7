"""Responses and conversations as they are stored: a head, and a row for each item."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.quoted_values import quoted

# The states of a response that has not ended.
RUNNING = ("queued", "in_progress")
# The kinds of rows: what was before the output or is in a conversation, the output, and the events of a stream.
ITEM, OUTPUT, EVENT = range(3)


@dataclass(frozen=True)
class Record:
    """A response or a conversation to be stored."""

    # As clients see it.
    value: JsonObject
    # The items of its conversation; of a response those before its output.
    items: Sequence[JsonObject]
    # Stands for the API key that it was made with; None without keys.
    owner: str | None = None
    # The events of its stream, if a client may ask for them again.
    events: Sequence[JsonObject] | None = None
    # The start of the server that a running response belongs to, the API process that runs it, and the unique id of its
    # request.
    run: str = ""
    pid: int = 0
    request: str = ""

    @property
    def id(self) -> str:
        """Its id."""
        id: str = self.value["id"]
        return id

    @property
    def all_items(self) -> list[JsonObject]:
        """Its items, with a response's output."""
        return [*self.items, *self.value.get("output", [])]


@dataclass(frozen=True)
class Row:
    """One item or event."""

    kind: int
    # None for an event.
    id: str | None
    json: bytes


@dataclass(frozen=True)
class EncodedRecord:
    """A record as a database takes it."""

    record: Record
    # Its value as JSON, with an empty output.
    head: bytes
    rows: list[Row]

    @property
    def size(self) -> int:
        """Bytes of JSON."""
        return len(self.head) + size_of(self.rows)


@dataclass(frozen=True)
class StoredRecord:
    """A record as it is read, without its items and events; the items of a response's output stay JSON."""

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


@dataclass(frozen=True)
class Page:
    """Some items, in the order that was asked for."""

    # With their ids.
    items: list[tuple[str, JsonObject | msgspec.Raw]]
    has_more: bool


@dataclass
class LatestResponse:
    """The latest response on one WebSocket, which the next one there may continue, whether it is stored or not."""

    record: Record | None = None

    def forget(self, id: object) -> None:
        """Forget this response, which a turn could not go on from."""
        if self.record is not None and self.record.id == id:
            self.record = None


def encode_record(record: Record) -> EncodedRecord:
    """A record as JSON."""
    output = record.value.get("output")
    head = record.value if output is None else {**record.value, "output": []}
    events = [Row(EVENT, None, to_json(event)) for event in record.events or ()]
    rows = [*encode_items(record.items), *encode_items(output or (), OUTPUT), *events]
    return EncodedRecord(record, to_json(head), rows)


def encode_items(items: Iterable[JsonObject], kind: int = ITEM) -> list[Row]:
    """The rows of these items."""
    return [Row(kind, item["id"], to_json(item)) for item in items]


def size_of(rows: Iterable[Row]) -> int:
    """Bytes of JSON of these rows."""
    return sum(len(row.json) for row in rows)


def to_json(part: JsonObject) -> bytes:
    """An object as JSON; lone surrogates become JSON's escapes."""
    try:
        return msgspec.json.encode(part)
    except UnicodeEncodeError:
        return json.dumps(part, ensure_ascii=False).encode(errors="backslashreplace")


def not_streamed(id: str) -> InvalidField:
    """The error for a stream that cannot be had again."""
    return InvalidField(
        f"stream must be false: response {quoted(id)} was not created with background: true and stream: true",
        param="stream",
    )


def not_cancelled(response: JsonObject) -> InvalidField:
    """The error for the cancellation of a response that has ended in another way."""
    return InvalidField(
        f"response {response['id']} is {response['status']} and cannot be cancelled", param="response_id"
    )
