"""The responses of /v1/responses that this process keeps in memory, for later requests to read and go on from."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Set
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
    """At most `size` ended responses of together `num_bytes`, those last used, and all that are being made.

    Each is there for its owner only: the name of the key that it was asked for with, or None. Of responses
    that have items in common each counts them.
    """

    def __init__(self, size: int, num_bytes: int) -> None:
        self._size = size
        self._most_bytes = num_bytes
        self._num_bytes = 0
        self._running: dict[str, KeptResponse] = {}
        self._ended: OrderedDict[str, tuple[EndedResponse, int]] = OrderedDict()

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
        self._ended[id] = ended, size
        self._num_bytes += size
        while len(self._ended) > self._size or self._num_bytes > self._most_bytes:
            self._drop(next(iter(self._ended)))

    def abandon(self, id: str) -> None:
        """It is not to be kept."""
        self._running.pop(id, None)

    def get(self, id: str, owner: str | None = None) -> KeptResponse:
        """A response of this owner. Raises ResponseNotFound."""
        kept: KeptResponse | None = self._running.get(id)
        if kept is None and id in self._ended:
            kept, _ = self._ended[id]
        if kept is None or kept.owner != owner:
            raise _not_found(id)
        if id in self._ended:
            self._ended.move_to_end(id)
        return kept

    def delete(self, id: str, owner: str | None = None) -> None:
        """Forget a response; one that is being made goes on for whoever reads it. Raises ResponseNotFound."""
        self.get(id, owner)
        if self._running.pop(id, None) is None:
            self._drop(id)

    def find_items(self, ids: Set[str], owner: str | None = None) -> dict[str, JsonObject]:
        """Those of the owner's conversations that have these ids, as many as there are."""
        return {item["id"]: item for item in self._items(owner) if item["id"] in ids} if ids else {}

    def _drop(self, id: str) -> None:
        _, size = self._ended.pop(id)
        self._num_bytes -= size

    def _items(self, owner: str | None) -> Iterator[JsonObject]:
        for kept in [*self._running.values(), *(ended for ended, _ in self._ended.values())]:
            if kept.owner == owner:
                yield from kept.items
                yield from kept.response["output"]


def _not_found(id: str) -> ResponseNotFound:
    return ResponseNotFound(f"no response {id[:100]!r} is kept here", param="response_id")
