"""A response of /v1/responses while it is made."""

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Receive

from genai_server.api.choices import Choices
from genai_server.api.metrics import metrics_of
from genai_server.api.response_store import EndedResponse, ResponseStore
from genai_server.errors import GenaiServerError
from genai_server.openai_api.response_builder import ResponseBuilder
from genai_server.openai_api.schemas.base import JsonObject


class RunningResponse:
    """Makes a response of an answer; whoever has it must `close` it, which ends the answer if it still runs.

    `items` are those that it is made from, `owner` the name of the key that it is asked for with.
    It is in the store, if one is given, from its making on.
    """

    def __init__(
        self,
        choices: Choices,
        build: ResponseBuilder,
        items: list[JsonObject],
        store: ResponseStore | None,
        *,
        owner: str | None,
        with_metrics: bool = False,
    ) -> None:
        self.items = items
        self.owner = owner
        self._choices = choices
        self._build = build
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
        """How many tokens of the prompt have been read, of how many; None when all have been."""
        return self._choices.progress

    async def events(self) -> AsyncIterator[dict[str, Any] | str]:
        """All events of its stream. Raises GenerationFailed."""
        for event in self._build.begin():
            yield event
        async for _, answer, piece in self._choices.pieces():
            if self._build.is_ended:
                break
            if piece is not None:
                for event in self._build.add(piece.parts, piece.tokens):
                    yield event
            else:
                more = {"metrics": metrics_of(self._choices)} if self._with_metrics else {}
                self._last_events = self._build.finish(answer.reason, self._choices.usage(), int(time.time()), **more)
        for event in self._last_events:
            yield event

    async def whole(self, receive: Receive) -> JsonObject:
        """The response when it has ended, which is kept only then: nobody else knows its id.

        Raises ClientLeft as soon as `receive` says so, and GenerationFailed.
        """
        try:
            await self._choices.read(receive, self._read())
        except BaseException:
            if self._store is not None:
                self._store.abandon(self.response["id"])
            raise
        return self.response

    def cancel(self) -> None:
        """End it with what there is; whoever reads the events gets the last ones."""
        if self._build.is_ended:
            self._ended().cancel()
        self._end()

    def fail(self, error: GenaiServerError) -> JsonObject:
        """End it with an error; the last event."""
        return self._build.fail(error, self._choices.usage())

    def close(self) -> None:
        """Leave."""
        self._end()
        self._choices.close()
        if self._store is not None:
            self._store.finish(self._ended())

    def _end(self) -> None:
        if not self._build.is_ended:
            self._last_events = self._build.cancel(self._choices.usage())
            for answer in self._choices.answers:
                answer.end()

    def _ended(self) -> EndedResponse:
        return EndedResponse(self.response, self.items, self.owner)

    async def _read(self) -> None:
        async for _ in self.events():
            pass
