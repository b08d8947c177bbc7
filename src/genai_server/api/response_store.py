"""The responses of /v1/responses that this process keeps in memory, for later requests to read and go on from."""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Protocol

from genai_server.errors import InvalidField, ResponseNotFound
from genai_server.openai_api.schemas.base import JsonObject


class KeptResponse(Protocol):
    """A response with the items that it was made from, those of the turns before included."""

    @property
    def response(self) -> JsonObject: ...

    @property
    def items(self) -> list[JsonObject]: ...

    @property
    def owner(self) -> str | None: ...

    def cancel(self) -> None:
        """End it. Raises InvalidField if it has ended by itself."""
        ...


@dataclass(frozen=True)
class EndedResponse:
    """A response that changes no more."""

    response: JsonObject
    items: list[JsonObject]
    owner: str | None = None

    def cancel(self) -> None:
        status = self.response["status"]
        if status != "cancelled":
            message = f"response {self.response['id']} is {status} and cannot be cancelled"
            raise InvalidField(message, param="response_id")

    def size(self) -> int:
        """Its length as JSON, in bytes."""
        return len(json.dumps([self.response, self.items], ensure_ascii=False).encode(errors="replace"))


class ResponseStore:
    """At most `size` ended responses of together `num_bytes`, and all that are being made.

    Each is there for its owner only: the name of the key that it was asked for with, or None. What is too much goes
    from the owner who has the most, used longest ago first, so that nobody drives out what others keep within their
    equal shares. Of responses that have items in common each counts them.
    """

    def __init__(self, size: int, num_bytes: int) -> None:
        self._size = size
        self._most_bytes = num_bytes
        self._running: dict[str, KeptResponse] = {}
        self._shelves: dict[str | None, _Shelf] = {}

    @property
    def is_on(self) -> bool:
        """Whether it keeps any."""
        return self._size > 0

    def begin(self, running: KeptResponse) -> None:
        """A response is being made."""
        self._running[running.response["id"]] = running

    def finish(self, ended: EndedResponse) -> None:
        """It has ended, and is kept unless it was deleted meanwhile or is larger than all may be together."""
        id, size = ended.response["id"], ended.size()
        if self._running.pop(id, None) is None or size > self._most_bytes:
            return
        self._shelves.setdefault(ended.owner, _Shelf()).put(ended, size)
        while sum(len(shelf.kept) for shelf in self._shelves.values()) > self._size:
            self._shrink(lambda shelf: len(shelf.kept), ended.owner)
        while sum(shelf.num_bytes for shelf in self._shelves.values()) > self._most_bytes:
            self._shrink(lambda shelf: shelf.num_bytes, ended.owner)

    def abandon(self, id: str) -> None:
        """It is not to be kept."""
        self._running.pop(id, None)

    def get(self, id: str, owner: str | None = None) -> KeptResponse:
        """A response of this owner. Raises ResponseNotFound."""
        running, shelf = self._running.get(id), self._shelves.get(owner)
        if running is not None and running.owner == owner:
            return running
        if shelf is None or id not in shelf.kept:
            raise ResponseNotFound(f"no response {id[:100]!r} is kept here", param="response_id")
        return shelf.use(id)

    def delete(self, id: str, owner: str | None = None) -> None:
        """Forget a response; one that is being made goes on for whoever reads it. Raises ResponseNotFound."""
        self.get(id, owner)
        if self._running.pop(id, None) is None:
            self._drop(owner, id)

    def find_items(self, ids: Set[str], owner: str | None = None) -> dict[str, JsonObject]:
        """Those of the owner's conversations that have these ids, as many as there are."""
        return {item["id"]: item for item in self._items(owner) if item["id"] in ids} if ids else {}

    def _shrink(self, measure: Callable[["_Shelf"], int], newcomer: str | None) -> None:
        """Drop one of the owner who has the most; of several, not of the one who has just come."""
        owner = max(self._shelves, key=lambda owner: (measure(self._shelves[owner]), owner != newcomer))
        self._drop(owner, next(iter(self._shelves[owner].kept)))

    def _drop(self, owner: str | None, id: str) -> None:
        shelf = self._shelves[owner]
        shelf.take(id)
        if not shelf.kept:
            del self._shelves[owner]

    def _items(self, owner: str | None) -> Iterator[JsonObject]:
        shelf = self._shelves.get(owner)
        ended = [] if shelf is None else [kept for kept, _ in shelf.kept.values()]
        for kept in [*(running for running in self._running.values() if running.owner == owner), *ended]:
            yield from kept.items
            yield from kept.response["output"]


class _Shelf:
    """What one owner keeps, with the size of each, the one used longest ago first."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, tuple[EndedResponse, int]] = OrderedDict()
        self.num_bytes = 0

    def put(self, ended: EndedResponse, size: int) -> None:
        self.kept[ended.response["id"]] = ended, size
        self.num_bytes += size

    def use(self, id: str) -> EndedResponse:
        self.kept.move_to_end(id)
        return self.kept[id][0]

    def take(self, id: str) -> None:
        _, size = self.kept.pop(id)
        self.num_bytes -= size
