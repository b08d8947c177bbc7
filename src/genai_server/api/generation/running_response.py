"""A response of /v1/responses while its answer runs, for its client or in the background."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property

from genai_server.api.errors import internal_error
from genai_server.api.generation.answers import Generation
from genai_server.api.generation.kept_response import KeptResponse
from genai_server.api.generation.records import LatestResponse, Record, not_cancelled, not_streamed
from genai_server.api.generation.request_context import RequestContext
from genai_server.api.generation.response_store import ResponseStore
from genai_server.errors import ConversationNotFound, GenaiServerError, InvalidField, ServerStopping, StoreUnavailable
from genai_server.generation import FinishReason
from genai_server.openai_api.response_builder import ResponseBuilder, stream_error
from genai_server.openai_api.schemas.base import JsonObject

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Keeping:
    """What becomes of a response."""

    store: ResponseStore
    # Whether the store has it.
    is_stored: bool
    # The unique id of its request.
    request: str
    # Stands for the API key.
    owner: str | None
    # The conversation that it is added to.
    conversation: str | None = None
    # Where the next response on the same WebSocket finds it.
    latest: LatestResponse | None = None


class RunningResponse:
    """Makes a response from a generation. Must be closed, which ends the answer if it still runs, or run in the
    background.
    """

    def __init__(
        self,
        generation: Generation,
        build: ResponseBuilder,
        items: list[JsonObject],
        keeping: Keeping,
        *,
        given: Sequence[JsonObject] = (),
        with_metrics: bool = False,
        keeps_events: bool = False,
    ) -> None:
        # Of the conversation up to this response.
        self.items = items
        # Why the file of the store, or the conversation, does not have it; None if nothing failed.
        self.not_stored: str | None = None
        self._generation = generation
        self._build = build
        self._keeping = keeping
        # The items of this turn.
        self._given = given
        self._with_metrics = with_metrics
        self._last_events: list[JsonObject] = []
        # Stores the response once it has ended; None before.
        self._storing: asyncio.Future[None] | None = None
        self._is_abandoned = False
        # Of its stream, by their numbers; None if no client may ask for them again.
        self._events: list[JsonObject] | None = [] if keeps_events else None
        # Set with each new event, and replaced.
        self._news = asyncio.Event()
        # Whether all events have been told.
        self._is_over = False
        # In the background: reads the answer, and makes the response its end.
        self._reading: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def response(self) -> JsonObject:
        """The response as it is now."""
        return self._build.response

    @property
    def owner(self) -> str | None:
        """Stands for the API key."""
        return self._keeping.owner

    @property
    def request(self) -> str:
        """The unique id of its request."""
        return self._keeping.request

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of the prompt that have been read, and of how many; None once all have been read."""
        return self._generation.progress

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        """The items of its conversation and its output that have these ids, by id."""
        given = {id: self._items_by_id[id] for id in self._items_by_id.keys() & ids}
        return given | self._build.find_items(ids)

    def begin(self) -> None:
        """Let others find it in the store."""
        if self._keeping.is_stored:
            self._keeping.store.begin(self)

    async def begin_in_background(
        self, counted: ExitStack, counting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Go on without a client, in a task within `counting`; `counted` is closed at the end."""
        try:
            await self._keeping.store.begin_background(self)
        except BaseException:
            counted.close()
            self.close()
            raise
        # The task that makes the end is never cancelled before it has begun; the one that reads may be.
        self._reading = asyncio.create_task(self._tell_all())
        self._task = asyncio.create_task(self._run(self._reading, counted, counting))

    async def events(self) -> AsyncGenerator[JsonObject]:
        """All events of its stream. Raises GenerationFailed."""
        for event in self._build.begin():
            yield event
        async for _, answer, piece in self._generation.pieces():
            if self._build.is_ended:
                break
            for event in self._build.start():
                yield event
            if piece is not None:
                for event in self._build.add(piece.parts, piece.tokens):
                    yield event
            else:
                self._last_events = await self._ended(answer.reason)
        # Whoever knows of the end finds the response, in other processes, too.
        await self.keep()
        for event in self._last_events:
            yield event

    async def whole(self, context: RequestContext) -> JsonObject:
        """Read the answer to its end, and return the response, which is kept only if this succeeds.

        Raises ClientLeft as soon as the client has disconnected, and GenerationFailed.
        """
        try:
            await context.waits_for(self._read())
        except BaseException:
            self._is_abandoned = True
            self._keeping.store.abandon(self.response["id"])
            raise
        return self.response

    def follow(self, after: int | None = None) -> AsyncGenerator[JsonObject]:
        """The events of its stream behind the one with this number, as they come. Raises InvalidField."""
        if self._events is None:
            raise not_streamed(self.response["id"])
        return self._follow(self._events, 0 if after is None else after + 1)

    def cancel(self) -> None:
        """End the response with the partial answer. The reader of the events receives the last ones."""
        if self._build.is_ended and self.response["status"] != "cancelled":
            raise not_cancelled(self.response)
        self._end()

    def fail(self, error: GenaiServerError) -> JsonObject:
        """End the response with an error; returns the last event."""
        return self._build.fail(error, self._generation.usage())

    def close(self) -> None:
        """End the answer if it still runs, and keep the response."""
        self._end()
        self._generation.close()
        if self._storing is None and not self._is_abandoned:
            self._keeping.store.later(self.keep())

    async def stop(self) -> None:
        """End it in the background at the end of the server."""
        if self._task is not None and self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._task])

    async def keep(self) -> None:
        """Store what has come of it, once; this goes on if whoever waits for it is cancelled."""
        if self._is_abandoned:
            return
        if self._storing is None:
            self._storing = asyncio.ensure_future(self._keep())
        await asyncio.shield(self._storing)

    @cached_property
    def _items_by_id(self) -> dict[str, JsonObject]:
        return {item["id"]: item for item in self.items}

    async def _keep(self) -> None:
        record, keeping = self._record(), self._keeping
        if keeping.latest is not None:
            if record.value["status"] in ("completed", "incomplete"):
                keeping.latest.record = record
            else:
                keeping.latest.forget(record.value["previous_response_id"])
        if keeping.conversation is not None:
            await self._add_to_conversation(keeping.conversation, record)
        if keeping.is_stored:
            reason = await keeping.store.finish(record)
            self.not_stored = self.not_stored or reason

    async def _add_to_conversation(self, conversation: str, record: Record) -> None:
        """Add what is new in a response that is complete, or was cut at its length."""
        if record.value["status"] not in ("completed", "incomplete"):
            return
        said = [item for item in record.value["output"] if item["status"] == "completed" or item["type"] == "message"]
        try:
            await self._keeping.store.add_items(conversation, self.owner, [*self._given, *said])
        # It was deleted meanwhile, or is full, or there is no disk.
        except (ConversationNotFound, InvalidField, StoreUnavailable) as error:
            self.not_stored = error.message
            log.warning("a response could not be added to its conversation: %s", error.message)

    async def _run(
        self, reading: asyncio.Task[None], counted: ExitStack, counting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        with counted, counting():
            try:
                await reading
            except asyncio.CancelledError:
                self._tell_end(ServerStopping())
            except GenaiServerError as error:
                self._tell_end(error)
            except Exception:
                log.exception("a response in the background met an internal error")
                self._tell_end(internal_error())
            finally:
                self._generation.close()
                await self.keep()
                self._is_over = True
                self._wake()

    async def _tell_all(self) -> None:
        async for event in self.events():
            self._tell(event)

    async def _was_ended_elsewhere(self) -> bool:
        store = self._keeping.store
        return self._task is not None and await store.was_ended_elsewhere(self.response["id"], self.owner)

    async def _ended(self, reason: FinishReason) -> list[JsonObject]:
        """End the response as the engine has ended its answer; returns the last events."""
        was_ended_elsewhere = reason is FinishReason.CANCELLED and await self._was_ended_elsewhere()
        if self._build.is_ended:  # it was cancelled here meanwhile
            return self._last_events
        if was_ended_elsewhere:
            return self._build.cancel(self._generation.usage())
        more = {"metrics": self._generation.metrics()} if self._with_metrics else {}
        return self._build.finish(reason, self._generation.usage(), int(time.time()), **more)

    def _tell(self, event: JsonObject) -> None:
        if self._events is not None:
            self._events.append(event)
            self._wake()

    def _tell_end(self, error: GenaiServerError) -> None:
        """The last events: of an error, unless it has ended before."""
        told = 0 if self._events is None else len(self._events)
        last = self._last_events if self._build.is_ended else [self.fail(error)]
        for event in last:
            if event["sequence_number"] >= told:
                self._tell(event)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _follow(self, events: list[JsonObject], place: int) -> AsyncGenerator[JsonObject]:
        while True:
            news = self._news
            while place < len(events):
                yield events[place]
                place += 1
                news = self._news
            if self._is_over:
                return
            await news.wait()

    def _end(self) -> None:
        if not self._build.is_ended:
            self._last_events = self._build.cancel(self._generation.usage())
            for answer in self._generation.answers:
                answer.end()

    def _record(self) -> Record:
        events = None if self._events is None else self._whole_stream(self._events)
        return Record(self.response, self.items, self.owner, events)

    def _whole_stream(self, events: list[JsonObject]) -> list[JsonObject]:
        """The events that have been told, and the last ones."""
        return [*events, *(event for event in self._last_events if event["sequence_number"] >= len(events))]

    async def _read(self) -> None:
        async for _ in self.events():
            pass


@dataclass(frozen=True)
class Following:
    """A client that follows a response, which goes on without it: the source of its stream."""

    kept: KeptResponse

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of the prompt that have been read, and of how many; None once all have been read."""
        return self.kept.progress

    def close(self) -> None:
        """Nothing: the response goes on."""

    def tell_error(self, error: GenaiServerError) -> JsonObject:
        """The last event of a stream that ends before its response."""
        return stream_error(error, 0)
