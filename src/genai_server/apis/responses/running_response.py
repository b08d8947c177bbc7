"""A response of /v1/responses while it is being generated, for a waiting client or in the background."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property

from genai_server.apis.responses.response import ResponseBuilder
from genai_server.apis.responses.store import CallerStore, KeptResponse, Running, not_cancelled, not_streamed
from genai_server.errors import ConversationNotFound, GenaiServerError, InvalidField, ServerStopping, StoreUnavailable
from genai_server.generation.answers import Ending, Generation
from genai_server.generation.dependencies import RequestContext
from genai_server.http.error_responses import internal_error
from genai_server.http.json_response import JsonObject
from genai_server.messages.generation_request import FinishReason
from genai_server.store.records import Record

log = logging.getLogger(__name__)


class RunningResponse(Running):
    """A response that is being generated, from the acceptance by the engine to its storage. The route creates it and
    then reads `events` or `whole`, or lets it run with `start_in_background`. Otherwise it must be closed, which
    cancels it if it is still running.
    """

    def __init__(
        self,
        generation: Generation,
        build: ResponseBuilder,
        items: list[JsonObject],
        stored: CallerStore,
        *,
        given: Sequence[JsonObject] = (),
        with_metrics: bool = False,
        keeps_events: bool = False,
    ) -> None:
        self.items = items
        self.owner, self.request = stored.owner, stored.request
        # Why it could not be stored or added to the conversation; None if nothing failed.
        self.not_stored: str | None = None
        self._generation = generation
        self._build = build
        self._stored = stored
        # The input items of this turn.
        self._given = given
        self._with_metrics = with_metrics
        self._last_events: list[JsonObject] = []
        # Stores the ended response; None before.
        self._storing: asyncio.Future[None] | None = None
        self._is_abandoned = False
        # The stream's events in order of their sequence numbers; None if they cannot be requested again.
        self._events: list[JsonObject] | None = [] if keeps_events else None
        # Set when an event is added, and then replaced.
        self._news = asyncio.Event()
        # Whether all events have been added.
        self._is_over = False
        # Background tasks: one reads the answer, one ends and stores the response.
        self._reading: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def response(self) -> JsonObject:
        return self._build.response

    @property
    def progress(self) -> tuple[int, int] | None:
        return self._generation.progress

    def find_items(self, ids: Set[str]) -> dict[str, JsonObject]:
        input_items = {id: self._items_by_id[id] for id in self._items_by_id.keys() & ids}
        return input_items | self._build.find_items(ids)

    def begin(self) -> None:
        """Make the running response available to other requests, unless the client does not want it to be stored."""
        if self.response["store"]:
            self._stored.store.begin(self)

    async def start_in_background(
        self, counted: ExitStack, counting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Store the response, and continue to generate it in a task that does not depend on the client's connection.

        The task runs within the context manager that `counting` returns, which counts it as running work of the
        process. Closing `counted` ends the request's use of its API key's limits. That happens when the task ends, or
        at once if the response cannot be stored. Raises the errors of `ResponseStore.start_background`.
        """
        try:
            await self._stored.store.start_background(self)
        except BaseException:
            counted.close()
            self.close()
            raise
        # Two tasks, because `stop` may cancel the reading task before it has begun.
        self._reading = asyncio.create_task(self._collect_events())
        self._task = asyncio.create_task(self._run(self._reading, counted, counting))

    async def events(self) -> AsyncGenerator[JsonObject]:
        """Generate the answer, yield all stream events of the response, and store the response before the last ones.
        Raises GenerationFailed.
        """
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
                self._last_events = await self._ended(answer.ending)
        # Store the response before sending its last event, so that clients find it, also through other processes.
        await self.keep()
        for event in self._last_events:
            yield event

    async def whole(self, context: RequestContext) -> JsonObject:
        """Wait for the complete answer and return the response object. Only a complete answer is stored.

        Raises ClientLeft when the client disconnects, and GenerationFailed.
        """
        try:
            await context.run_while_connected(self._read())
        except BaseException:
            self._is_abandoned = True
            self._stored.store.abandon(self.response["id"])
            raise
        return self.response

    def follow(self, after: int | None = None) -> AsyncGenerator[JsonObject]:
        if self._events is None:
            raise not_streamed(self.response["id"])
        return self._follow(self._events, 0 if after is None else after + 1)

    def cancel(self) -> None:
        """Cancel the response and keep its partial answer. Clients that read its stream receive the last events. Raises
        InvalidField if the response has already ended otherwise than by cancellation.
        """
        if self._build.is_ended and self.response["status"] != "cancelled":
            raise not_cancelled(self.response)
        self._end()

    def fail(self, error: GenaiServerError) -> JsonObject:
        """End the response with an error, and return the last event."""
        return self._build.fail(error, self._generation.usage())

    def close(self) -> None:
        """Cancel the answer unless it has ended, and store the response in the background."""
        self._end()
        self._generation.close()
        if self._storing is None and not self._is_abandoned:
            self._stored.store.later(self.keep())

    async def stop(self) -> None:
        if self._task is not None and self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._task])

    async def keep(self) -> None:
        """Store the response, which has ended, and wait for that. Later calls only wait for the first. If the caller is
        cancelled, storing continues.
        """
        if self._is_abandoned:
            return
        if self._storing is None:
            self._storing = asyncio.ensure_future(self._keep_safely())
        await asyncio.shield(self._storing)

    @cached_property
    def _items_by_id(self) -> dict[str, JsonObject]:
        return {item["id"]: item for item in self.items}

    async def _keep_safely(self) -> None:
        """Store the response, and never raise an exception: an unexpected one is logged and becomes the reason why the
        response was not stored (`not_stored`).
        """
        try:
            await self._keep()
        except Exception:
            log.exception("internal error while a response was stored")
            self.not_stored = internal_error().message

    async def _keep(self) -> None:
        record, latest = self._record(), self._stored.latest
        if latest is not None:
            if record.value["status"] in ("completed", "incomplete"):
                latest.record = record
            else:
                latest.forget(record.value["previous_response_id"])
        if "conversation" in record.value:
            await self._add_to_conversation(record.value["conversation"]["id"], record)
        if record.value["store"]:
            reason = await self._stored.store.finish(record)
            self.not_stored = self.not_stored or reason
            if reason is not None and self._task is None:  # one in the background is stored later
                self._last_events = self._build.unstored(self._last_events)

    async def _add_to_conversation(self, conversation: str, record: Record) -> None:
        """Append the new items of a completed or truncated response to its conversation."""
        if record.value["status"] not in ("completed", "incomplete"):
            return
        # Items without a status, such as custom tool calls, are only in the output if they are complete.
        outputs = [
            item
            for item in record.value["output"]
            if item.get("status", "completed") == "completed" or item["type"] in ("message", "mcp_call")
        ]
        try:
            await self._stored.store.add_items(conversation, self.owner, [*self._given, *outputs])
        # The conversation has been deleted or is full, or the disk failed.
        except (ConversationNotFound, InvalidField, StoreUnavailable) as error:
            self.not_stored = error.message
            log.warning("could not add a response to its conversation: %s", error.message)

    async def _run(
        self, reading: asyncio.Task[None], counted: ExitStack, counting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        with counted, counting():
            try:
                await reading
            except asyncio.CancelledError:
                self._add_last_events(ServerStopping())
            except GenaiServerError as error:
                self._add_last_events(error)
            except Exception:
                log.exception("internal error in a background response")
                self._add_last_events(internal_error())
            finally:
                self._generation.close()
                try:
                    await self.keep()
                finally:
                    self._is_over = True
                    self._wake()

    async def _collect_events(self) -> None:
        async for event in self.events():
            self._add_event(event)

    async def _ended(self, ending: Ending) -> list[JsonObject]:
        """End the response object with the finish reason in `ending`, and return the last stream events. A response
        that has been cancelled meanwhile, in this process or another one, stays cancelled.
        """
        was_ended_by_other_process = (
            ending.reason is FinishReason.CANCELLED
            and self._task is not None
            and await self._stored.store.was_ended_by_other_process(self.response["id"], self.owner)
        )
        if self._build.is_ended:  # it was cancelled in this process while waiting
            return self._last_events
        if was_ended_by_other_process:
            return self._build.cancel(self._generation.usage())
        more = {"metrics": self._generation.metrics()} if self._with_metrics else {}
        return self._build.finish(ending, self._generation.usage(), int(time.time()), **more)

    def _add_event(self, event: JsonObject) -> None:
        if self._events is not None:
            self._events.append(event)
            self._wake()

    def _add_last_events(self, error: GenaiServerError) -> None:
        """Add the last events to the stored stream: the event of this error, or the last events of the response if it
        has already ended.
        """
        for event in self._missing(self._last_events if self._build.is_ended else [self.fail(error)]):
            self._add_event(event)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _follow(self, events: list[JsonObject], position: int) -> AsyncGenerator[JsonObject]:
        while True:
            news = self._news
            while position < len(events):
                yield events[position]
                position += 1
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
        events = None if self._events is None else [*self._events, *self._missing(self._last_events)]
        return Record(self.response, self.items, self.owner, events)

    def _missing(self, last: list[JsonObject]) -> list[JsonObject]:
        """The events in `last` that are not in the stored stream yet, judged by their sequence numbers."""
        num_events = len(self._events or [])
        return [event for event in last if event["sequence_number"] >= num_events]

    async def _read(self) -> None:
        async for _ in self.events():
            pass


@dataclass(frozen=True)
class Following:
    """The source of an event stream that shows a response which is generated independently of the stream. It has the
    progress of the response `kept`. A client that closes the stream does not end the response.
    """

    kept: KeptResponse

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many prompt tokens the engine has read, and how many there are in all; None once it has read them all."""
        return self.kept.progress

    def close(self) -> None:
        """Do nothing, since the response continues without this stream."""
