"""Server-sent events of one answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from genai_server.api.answer import Answer
from genai_server.api.errors import error_body
from genai_server.errors import GenaiServerError

# At a shutdown the running answers go on to their ends, within uvicorn's own time limit; cut off at once they would
# have no terminal event.
AppStatus.enable_automatic_graceful_drain = False


class AnswerStream(EventSourceResponse):
    """Sends events, each a JSON object or a plain word, and closes the answer however the response ends.

    An error after the headers is an event in the form of the error bodies, and the last one.
    """

    def __init__(self, answer: Answer, events: AsyncIterator[dict[str, Any] | str]) -> None:
        self._answer = answer
        super().__init__(_encoded(events), sep="\n")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A generator's own `finally` is not enough: cancelled before its first step, it never runs.
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


async def _encoded(events: AsyncIterator[dict[str, Any] | str]) -> AsyncIterator[str]:
    try:
        async for event in events:
            yield event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
    except GenaiServerError as error:
        yield json.dumps(error_body(error), ensure_ascii=False)
