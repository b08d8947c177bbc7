"""A response of /v1/responses while its answer runs."""

import time
from collections.abc import AsyncGenerator

from genai_server.api.generation.answers import Generation
from genai_server.api.generation.request_context import RequestContext
from genai_server.api.generation.response_store import EndedResponse, ResponseStore
from genai_server.errors import GenaiServerError
from genai_server.openai_api.response_builder import ResponseBuilder
from genai_server.openai_api.schemas.base import JsonObject


class RunningResponse:
    """Makes a response from a generation. Must be closed, which ends the answer if it still runs."""

    def __init__(
        self,
        generation: Generation,
        build: ResponseBuilder,
        items: list[JsonObject],
        store: ResponseStore | None,
        *,
        owner: str | None,
        with_metrics: bool = False,
    ) -> None:
        # Of the conversation up to this response.
        self.items = items
        # The name of the API key.
        self.owner = owner
        self._generation = generation
        self._build = build
        # Has the response from now on; None if it is not kept.
        self._store = store
        self._with_metrics = with_metrics
        self._last_events: list[JsonObject] = []
        if store is not None:
            store.begin(self)

    @property
    def response(self) -> JsonObject:
        """The response as it is now."""
        return self._build.response

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of the prompt that have been read, and of how many; None once all have been read."""
        return self._generation.progress

    async def events(self) -> AsyncGenerator[JsonObject]:
        """All events of its stream. Raises GenerationFailed."""
        for event in self._build.begin():
            yield event
        async for _, answer, piece in self._generation.pieces():
            if self._build.is_ended:
                break
            if piece is not None:
                for event in self._build.add(piece.parts, piece.tokens):
                    yield event
            else:
                more = {"metrics": self._generation.metrics()} if self._with_metrics else {}
                self._last_events = self._build.finish(
                    answer.reason, self._generation.usage(), int(time.time()), **more
                )
        for event in self._last_events:
            yield event

    async def whole(self, context: RequestContext) -> JsonObject:
        """Read the answer to its end, and return the response, which is kept only if this succeeds.

        Raises ClientLeft as soon as the client has disconnected, and GenerationFailed.
        """
        try:
            await context.waits_for(self._read())
        except BaseException:
            if self._store is not None:
                self._store.abandon(self.response["id"])
            raise
        return self.response

    def cancel(self) -> None:
        """End the response with the partial answer. The reader of the events receives the last ones."""
        if self._build.is_ended:
            self._ended().cancel()
        self._end()

    def fail(self, error: GenaiServerError) -> JsonObject:
        """End the response with an error; returns the last event."""
        return self._build.fail(error, self._generation.usage())

    def close(self) -> None:
        """End the answer if it still runs, and keep the response."""
        self._end()
        self._generation.close()
        if self._store is not None:
            self._store.finish(self._ended())

    def _end(self) -> None:
        if not self._build.is_ended:
            self._last_events = self._build.cancel(self._generation.usage())
            for answer in self._generation.answers:
                answer.end()

    def _ended(self) -> EndedResponse:
        return EndedResponse(self.response, self.items, self.owner)

    async def _read(self) -> None:
        async for _ in self.events():
            pass
