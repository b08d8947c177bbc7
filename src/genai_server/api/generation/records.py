"""Ended responses and conversations that later requests read and continue, in memory and within limits."""

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Set
from dataclasses import asdict, dataclass, field, replace

import msgspec

from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.quoted_values import quoted

# The states of a response that has not ended.
RUNNING = ("queued", "in_progress")


@dataclass(frozen=True)
class Record:
    """A response or a conversation that is stored."""

    # As clients see it.
    value: JsonObject
    # The items of its conversation; of a response those before its output.
    items: list[JsonObject]
    # Stands for the API key that it was made with; None without keys.
    owner: str | None = None
    # The events of its stream, if a client may ask for them again.
    events: list[JsonObject] | None = None
    # The start of the server that a running response belongs to, the API process that runs it, and the unique id of its
    # request.
    run: str = ""
    pid: int = 0
    request: str = ""
    # Whether another API process has cancelled a running response.
    is_cancelled: bool = False

    @property
    def id(self) -> str:
        """Its id."""
        id: str = self.value["id"]
        return id

    @property
    def response(self) -> JsonObject:
        """The response that it is."""
        return self.value

    @property
    def is_running(self) -> bool:
        """Whether it is a response that has not ended."""
        return self.value.get("status") in RUNNING

    @property
    def all_items(self) -> list[JsonObject]:
        """Its items, with a response's output."""
        return [*self.items, *self.value.get("output", [])]

    def cancel(self) -> None:
        """Accept a response that was cancelled. Raises InvalidField for every other."""
        status = self.value["status"]
        if status != "cancelled":
            raise InvalidField(f"response {self.id} is {status} and cannot be cancelled", param="response_id")

    @property
    def progress(self) -> None:
        """It reads no prompt."""
        return

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The events of its stream behind the one with this number. Raises InvalidField if none are stored."""
        if self.events is None:
            raise not_streamed(self.id)
        return _each(self.events[_place(after) :])

    def to_json(self) -> bytes:
        """The whole record."""
        try:
            return msgspec.json.encode(self)
        except UnicodeEncodeError:  # what cannot be encoded becomes JSON's escapes
            return json.dumps(asdict(self), ensure_ascii=False).encode(errors="backslashreplace")

    @classmethod
    def from_json(cls, text: bytes) -> "Record":
        """What `to_json` has written. Raises ValueError and TypeError for anything else."""
        return cls(**json.loads(text))

    def size(self) -> int:
        """The length of the JSON of what it holds, in bytes."""
        return _size(self.value) + sum(map(_size, self.items)) + sum(map(_size, self.events or []))

    def size_after(self, before: "Record", size: int) -> int:
        """The same, by that of the record that it was made of; measures only the items behind the common beginning."""
        same = 0
        while same < min(len(self.items), len(before.items)) and self.items[same] is before.items[same]:
            same += 1
        new, old = (replace(record, items=record.items[same:]) for record in (self, before))
        return size + new.size() - old.size()


@dataclass
class LatestResponse:
    """The latest response on one WebSocket, which the next one there may continue, whether it is stored or not."""

    record: Record | None = None

    def forget(self, id: object) -> None:
        """Forget this response, which a turn could not go on from."""
        if self.record is not None and self.record.id == id:
            self.record = None


def _size(part: JsonObject) -> int:
    try:
        return len(msgspec.json.encode(part))
    except UnicodeEncodeError:
        return len(json.dumps(part, ensure_ascii=False).encode(errors="replace"))


def not_streamed(id: str) -> InvalidField:
    """The error for a stream that cannot be had again."""
    return InvalidField(
        f"stream must be false: response {quoted(id)} was not created with background: true and stream: true",
        param="stream",
    )


def too_large(changed: Record, size: int, most: int) -> InvalidField:
    """The error for a record that would be larger than the limit."""
    return InvalidField(
        f"{changed.id} would have {size} bytes, and what is stored may have at most {most} "
        "(GENAI_RESPONSE_STORE_BYTES); it stays as it is",
        param=None,
    )


def _place(after: int | None) -> int:
    return 0 if after is None else after + 1


async def _each(events: list[JsonObject]) -> AsyncGenerator[JsonObject]:
    for event in events:
        yield event


class MemoryRecords:
    """Records within limits, visible to their owners only.

    Beyond a limit, the owner with the most loses the least recently used record, so no owner evicts others within an
    equal share. Items that several records share count for each of them.
    """

    def __init__(self, size: int, num_bytes: int) -> None:
        # Most records, and most bytes of them together.
        self._size = size
        self._most_bytes = num_bytes
        # Of each owner.
        self._shelves: dict[str | None, _Shelf] = {}

    def put(self, record: Record) -> bool:
        """Store a record in place of the one with its id; returns whether it is within the limits alone."""
        return self._put(record, record.size())

    def get(self, id: str, owner: str | None = None) -> Record | None:
        """A record of this owner."""
        shelf = self._shelves.get(owner)
        return None if shelf is None or id not in shelf.kept else shelf.use(id)

    def change(self, id: str, owner: str | None, change: Callable[[Record], Record]) -> Record | None:
        """Replace a record by the changed one, and return that; None if there is no such record.

        Raises InvalidField if it would be larger than the limit, and whatever `change` raises.
        """
        record = self.get(id, owner)
        if record is None:
            return None
        changed = change(record)
        if (size := changed.size_after(record, self._shelves[owner].size(id))) > self._most_bytes:
            raise too_large(changed, size, self._most_bytes)
        self._put(changed, size)
        return changed

    def delete(self, id: str, owner: str | None = None) -> bool:
        """Remove a record; returns whether it was there."""
        if self.get(id, owner) is None:
            return False
        self._drop(owner, id)
        return True

    def find_items(self, ids: Set[str], owner: str | None = None) -> dict[str, JsonObject]:
        """The items of the owner's records that have these ids, by id; unknown ids are left out."""
        return {item["id"]: item for item in self._items(owner) if item["id"] in ids} if ids else {}

    def _put(self, record: Record, size: int) -> bool:
        self.delete(record.id, record.owner)
        if size > self._most_bytes or not self._size:
            return False
        self._shelves.setdefault(record.owner, _Shelf()).put(record, size)
        while sum(len(shelf.kept) for shelf in self._shelves.values()) > self._size:
            self._shrink(lambda shelf: len(shelf.kept), record.owner)
        while sum(shelf.num_bytes for shelf in self._shelves.values()) > self._most_bytes:
            self._shrink(lambda shelf: shelf.num_bytes, record.owner)
        return True

    def _shrink(self, measure: Callable[["_Shelf"], int], newcomer: str | None) -> None:
        """Evict one record of the owner that has the most; of several such owners, not of the newcomer."""
        owner = max(self._shelves, key=lambda owner: (measure(self._shelves[owner]), owner != newcomer))
        self._drop(owner, next(iter(self._shelves[owner].kept)))

    def _drop(self, owner: str | None, id: str) -> None:
        shelf = self._shelves[owner]
        shelf.take(id)
        if not shelf.kept:
            del self._shelves[owner]

    def _items(self, owner: str | None) -> Iterator[JsonObject]:
        shelf = self._shelves.get(owner)
        for record, _ in [] if shelf is None else shelf.kept.values():
            yield from record.all_items


@dataclass
class _Shelf:
    """One owner's records."""

    # With their sizes, the least recently used first.
    kept: OrderedDict[str, tuple[Record, int]] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def put(self, record: Record, size: int) -> None:
        self.kept[record.id] = record, size
        self.num_bytes += size

    def size(self, id: str) -> int:
        return self.kept[id][1]

    def use(self, id: str) -> Record:
        self.kept.move_to_end(id)
        return self.kept[id][0]

    def take(self, id: str) -> None:
        _, size = self.kept.pop(id)
        self.num_bytes -= size
