"""A response of /v1/responses while it is being generated, either for a client that waits for it or in the background.

`RunningResponse` generates the answer, keeps the response object up to date, and stores it at the end. `Following` is
for event streams that only watch a response.
"""

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
    """A response that is being generated, from its acceptance by the engine until it is stored. It is queued or
    in_progress at first, and ends as completed, incomplete, cancelled or failed.

    The route creates it. It then reads `events` for a stream, or awaits `whole` for one object, or calls
    `start_in_background` to let it run without a client. In the first two cases the route or the stream must call
    `close` at the end, which cancels a response that is still running.
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
        """Register the response in the store, so that other requests to this process can find it by its id. Does
        nothing if the client does not want the response to be stored.
        """
        if self.response["store"]:
            self._stored.store.begin(self)

    async def start_in_background(
        self, counted: ExitStack, counting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Store the response, and continue to generate it in a task that does not depend on the client's connection.
        Returns when the task has been created.

        `counting` returns a context manager in which the task runs, so that the process counts it as running work.
        `counted` holds the request's share of the limits of its API key. It is closed when the task ends, or at once if
        the response cannot be stored. Raises StoreUnavailable, and InvalidField if the items are too large to be
        stored.
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
        """Generate the answer, and yield all stream events of the response. The response is stored before its last
        events are yielded. Raises GenerationFailed if the answer fails.
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
        """Generate the answer to its end, and return the response object. The response is stored only if this succeeds.
        `context` is that of the request, whose client waits.

        Raises ClientLeft when the client disconnects, and GenerationFailed if the answer fails.
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
        """End the response with the status cancelled and the answer so far. Clients that read its stream receive the
        last events. Does nothing if the response has already been cancelled. Raises InvalidField if it has ended in
        another way.
        """
        if self._build.is_ended and self.response["status"] != "cancelled":
            raise not_cancelled(self.response)
        self._end()

    def fail(self, error: GenaiServerError) -> JsonObject:
        """End the response with the status failed because of `error`, and return its last stream event. If the response
        has already ended, it does not change, and its last event is returned again.
        """
        return self._build.fail(error, self._generation.usage())

    def close(self) -> None:
        """End the work for the response because the caller no longer needs it: a response that is still running is
        cancelled. A response that has not been stored yet is stored in a task that the caller does not wait for.
        """
        self._end()
        self._generation.close()
        if self._storing is None and not self._is_abandoned:
            self._stored.store.later(self.keep())

    async def stop(self) -> None:
        if self._task is not None and self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._task])

    async def keep(self) -> None:
        """Store the response, which must have ended, and wait until that is done. It is stored only once: later calls
        wait for the first one. Storing continues if the task that waits is cancelled.
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
        """Store the response without ever raising an exception. An unexpected one is logged, and its message becomes
        the value of `not_stored`, the reason why the response was not stored.
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
        """Append the items of this turn, its input and the output of the response, to the conversation with the id
        `conversation`. Does nothing if the response was cancelled or has failed. `record` has the final response.

        If the conversation cannot be changed, the reason is logged and becomes the value of the attribute `not_stored`,
        of which the client is told.
        """
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
        """End the response object because the answer has ended, and return the last stream events. `ending` says how
        the answer ended. A response that has been cancelled in the meantime, in this process or another one, has the
        status cancelled whatever `ending` says.
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
        """Complete the kept stream events of a background response that was interrupted by `error`. If the response has
        already ended, its last events are added, otherwise it ends as failed and the event for `error` is added.
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
        """Return those of the response's last events `last` that are not yet in the list of events which is kept for
        clients that request them again. The sequence numbers show this.
        """
        num_events = len(self._events or [])
        return [event for event in last if event["sequence_number"] >= num_events]

    async def _read(self) -> None:
        async for _ in self.events():
            pass


@dataclass(frozen=True)
class Following:
    """The source of an event stream that only watches the response `kept`, which is generated by another request or has
    already been stored. The stream asks the source for the progress to report. A client that closes the stream does not
    end the response.
    """

    kept: KeptResponse

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return how many tokens of the prompt the engine has read, and how many there are in all. None once it has
        read the whole prompt.
        """
        return self.kept.progress

    def close(self) -> None:
        """Do nothing. A stream closes its source at its end, but the response continues without this stream."""
