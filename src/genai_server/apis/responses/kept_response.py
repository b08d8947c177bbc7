"""Responses as returned by the store: running in this process, or stored."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from genai_server.apis.responses.records import StoredRecord, not_cancelled, not_streamed
from genai_server.apis.shared.base import JsonObject


class KeptResponse(Protocol):
    """A running or ended response in the store."""

    @property
    def response(self) -> JsonObject:
        """The response. The output items of an ended response are raw JSON."""
        ...

    @property
    def owner(self) -> str | None:
        """Digest of the API key that the response was requested with."""
        ...

    @property
    def progress(self) -> tuple[int, int] | None:
        """Prompt tokens processed and their total number; None when all have been processed."""
        ...

    def cancel(self) -> None:
        """Cancel the response. Raises InvalidField if it has ended in another way."""
        ...

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The stream's events after this sequence number. Raises InvalidField if the response has no events."""
        ...


class Running(KeptResponse, Protocol):
    """A response running in this process."""

    @property
    def items(self) -> Sequence[JsonObject]:
        """The conversation's items up to this response."""
        ...

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        """The conversation and output items with these ids, keyed by id."""
        ...


class RunningInBackground(Running, Protocol):
    """A response running without a client."""

    @property
    def request(self) -> str:
        """The unique id of the request."""
        ...

    async def stop(self) -> None:
        """End the response because the server is stopping."""
        ...


@dataclass(frozen=True)
class StoredResponse:
    """A stored response."""

    record: StoredRecord
    # Reads the next stream events after a sequence number. Raises ResponseNotFound and StoreUnavailable.
    read_events: Callable[[int], Awaitable[Sequence[JsonObject]]]

    @property
    def response(self) -> JsonObject:
        """The response. Its output items are raw JSON."""
        return self.record.value

    @property
    def owner(self) -> str | None:
        """Digest of the API key."""
        return self.record.owner

    @property
    def progress(self) -> None:
        """None: the prompt has been processed."""
        return

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
