"""What the store gives for a response: one that runs here, or one that is stored."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from genai_server.api.generation.records import StoredRecord, not_cancelled, not_streamed
from genai_server.openai_api.schemas.base import JsonObject


class KeptResponse(Protocol):
    """A running or ended response in the store."""

    @property
    def response(self) -> JsonObject:
        """The response; items of the output of an ended one are JSON."""
        ...

    @property
    def owner(self) -> str | None:
        """Stands for the API key that it was requested with."""
        ...

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of the prompt that have been read, and of how many; None once all have been read."""
        ...

    def cancel(self) -> None:
        """End the response. Raises InvalidField if it has ended in another way."""
        ...

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The events of its stream behind the one with this number. Raises InvalidField if it has none."""
        ...


class Running(KeptResponse, Protocol):
    """A response that runs in this process."""

    @property
    def items(self) -> Sequence[JsonObject]:
        """The items of its conversation up to the response."""
        ...

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        """The items of its conversation and its output that have these ids, by id."""
        ...


class RunningInBackground(Running, Protocol):
    """A response that runs without a client."""

    @property
    def request(self) -> str:
        """The unique id of its request."""
        ...

    async def stop(self) -> None:
        """End it at the end of the server."""
        ...


@dataclass(frozen=True)
class StoredResponse:
    """A response as it is stored."""

    record: StoredRecord
    # The next events of its stream behind the one with this number. Raises ResponseNotFound and StoreUnavailable.
    read_events: Callable[[int], Awaitable[Sequence[JsonObject]]]

    @property
    def response(self) -> JsonObject:
        """The response; the items of its output are JSON."""
        return self.record.value

    @property
    def owner(self) -> str | None:
        """Stands for the API key."""
        return self.record.owner

    @property
    def progress(self) -> None:
        """It reads no prompt."""
        return

    def cancel(self) -> None:
        """Accept a response that was cancelled. Raises InvalidField for every other."""
        if self.response["status"] != "cancelled":
            raise not_cancelled(self.response)

    def follow(self, after: int | None) -> AsyncGenerator[JsonObject]:
        """The events of its stream behind the one with this number. Raises InvalidField if none are stored."""
        if not self.record.has_events:
            raise not_streamed(self.response["id"])
        return self._events(-1 if after is None else after)

    async def _events(self, after: int) -> AsyncGenerator[JsonObject]:
        while events := await self.read_events(after):
            for event in events:
                yield event
            after += len(events)
