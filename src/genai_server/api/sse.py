"""Server-sent events of the answers to one request."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from genai_server.api.choices import Choices
from genai_server.api.errors import error_body
from genai_server.errors import GenaiServerError, ServerStopping

log = logging.getLogger(__name__)

# At a shutdown the running answers go on to their ends, within uvicorn's own time limit; cut off at once they would
# have no terminal event.
AppStatus.enable_automatic_graceful_drain = False


# Line ends to some clients' readers, though not in server-sent events; JSON has escapes for them.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class EventStream(EventSourceResponse):
    """Sends events, each a JSON object or a plain word, and closes the answers however the response ends.

    An error after the headers is an event in the form of the error bodies, and the last one.
    """

    def __init__(self, choices: Choices, events: AsyncIterator[dict[str, Any] | str]) -> None:
        self._choices = choices
        super().__init__(_encoded(events), sep="\n")  # of the pings between the events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A generator's own `finally` is not enough: cancelled before its first step, it never runs.
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            # The server stops, and has waited for as long as it may.
            last = _event(error_body(ServerStopping()))
            await send({"type": "http.response.body", "body": last, "more_body": False})
            raise
        finally:
            self._choices.close()


async def _encoded(events: AsyncIterator[dict[str, Any] | str]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield _event(event)
    except GenaiServerError as error:
        yield _event(error_body(error))
    except Exception:
        log.exception("a stream met an internal error")
        yield _event(error_body(GenaiServerError("internal error; the server's log has more")))


def _event(value: dict[str, Any] | str) -> bytes:
    """One event as it goes over the wire (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS)
    return f"data: {data}\n\n".encode()
