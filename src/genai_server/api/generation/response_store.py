"""The responses of /v1/responses that this process keeps in memory, for later requests to read and continue."""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Protocol

from genai_server.errors import InvalidField, ResponseNotFound
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.quoted_values import quoted


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
        """The name of the API key that it was requested with."""
        ...

    def cancel(self) -> None:
        """End the response. Raises InvalidField if it has ended in another way."""
        ...


@dataclass(frozen=True)
class EndedResponse:
    """A response that does not change any more."""

    response: JsonObject
    items: list[JsonObject]
    owner: str | None = None

    def cancel(self) -> None:
        status = self.response["status"]
        if status != "cancelled":
            message = f"response {self.response['id']} is {status} and cannot be cancelled"
            raise InvalidField(message, param="response_id")

    def size(self) -> int:
        """The length of its JSON, in bytes."""
        return len(json.dumps([self.response, self.items], ensure_ascii=False).encode(errors="replace"))


class ResponseStore:
    """Running responses, and ended ones within the limits.

    A response is visible to its owner only: the name of an API key, or None. Beyond a limit, the owner with the most
    loses the least recently used response, so no owner evicts others within an equal share. Items that several
    responses share count for each of them.
    """

    def __init__(self, size: int, num_bytes: int) -> None:
        # Most ended responses, and most bytes of them together.
        self._size = size
        self._most_bytes = num_bytes
        # By id.
        self._running: dict[str, KeptResponse] = {}
        # Of each owner.
        self._shelves: dict[str | None, _Shelf] = {}

    @property
    def is_on(self) -> bool:
        """Whether any responses are kept."""
        return self._size > 0

    def begin(self, running: KeptResponse) -> None:
        """Add a running response."""
        self._running[running.response["id"]] = running

    def finish(self, ended: EndedResponse) -> None:
        """Replace a running response by the ended one, unless it was deleted meanwhile or exceeds the limit alone."""
        id, size = ended.response["id"], ended.size()
        if self._running.pop(id, None) is None or size > self._most_bytes:
            return
        self._shelves.setdefault(ended.owner, _Shelf()).put(ended, size)
        while sum(len(shelf.kept) for shelf in self._shelves.values()) > self._size:
            self._shrink(lambda shelf: len(shelf.kept), ended.owner)
        while sum(shelf.num_bytes for shelf in self._shelves.values()) > self._most_bytes:
            self._shrink(lambda shelf: shelf.num_bytes, ended.owner)

    def abandon(self, id: str) -> None:
        """Remove a running response."""
        self._running.pop(id, None)

    def get(self, id: str, owner: str | None = None) -> KeptResponse:
        """A response of this owner. Raises ResponseNotFound."""
        running, shelf = self._running.get(id), self._shelves.get(owner)
        if running is not None and running.owner == owner:
            return running
        if shelf is None or id not in shelf.kept:
            raise ResponseNotFound(f"no response {quoted(id)} is kept here", param="response_id")
        return shelf.use(id)

    def delete(self, id: str, owner: str | None = None) -> None:
        """Remove a response. A running one continues for its reader. Raises ResponseNotFound."""
        self.get(id, owner)
        if self._running.pop(id, None) is None:
            self._drop(owner, id)

    def find_items(self, ids: Set[str], owner: str | None = None) -> dict[str, JsonObject]:
        """The items of the owner's conversations that have these ids, by id; unknown ids are left out."""
        return {item["id"]: item for item in self._items(owner) if item["id"] in ids} if ids else {}

    def _shrink(self, measure: Callable[["_Shelf"], int], newcomer: str | None) -> None:
        """Evict one response of the owner that has the most; of several such owners, not of the newcomer."""
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
    """One owner's responses with their sizes, the least recently used first."""

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
