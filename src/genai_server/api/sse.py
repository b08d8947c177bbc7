"""Server-sent events of the answers to one request."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.types import Message, Receive, Scope, Send

from genai_server.api.errors import error_body
from genai_server.errors import GenaiServerError, ServerStopping

log = logging.getLogger(__name__)

# At a shutdown the running answers go on to their ends, within uvicorn's own time limit; cut off at once they would
# have no terminal event.
AppStatus.enable_automatic_graceful_drain = False

# Line ends to some clients' readers, though not in server-sent events; JSON has escapes for them.
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")


# What an endpoint that may stream says of its 200.
STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


class Source(Protocol):
    """Whatever the events tell of."""

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many tokens of prompts have been read, of how many; None when there is nothing to read any more."""
        ...

    def close(self) -> None:
        """Leave; called in any case."""
        ...


class EventStream(EventSourceResponse):
    """Sends events, each a JSON object or a plain word, and closes what they tell of however the response ends.

    With `named` each event, an object, goes by the name that it has as its `type`. An error after the headers is the
    last event, in the form that `tell_error` gives it. An event is made when the one before has been taken: what a slow
    reader leaves gathers as tokens, not as text. Every few seconds there is a comment, which keeps the connection open
    and says how far the prompt has been read; readers of events pass over it.
    """

    DEFAULT_PING_INTERVAL = 5

    def __init__(
        self,
        source: Source,
        events: AsyncIterator[dict[str, Any] | str],
        *,
        named: bool = False,
        tell_error: Callable[[GenaiServerError], dict[str, Any]] = error_body,
    ) -> None:
        self._source = source
        self._named = named
        self._state: dict[str, Any] = {}  # of the scope
        self._tell_error = tell_error
        super().__init__(self._encoded(events), ping_message_factory=self._comment)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._state = scope["state"]
        # A generator's own `finally` is not enough: cancelled before its first step, it never runs.
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            # The server stops, and has waited for as long as it may.
            last = self._error_event(ServerStopping())
            await send({"type": "http.response.body", "body": last, "more_body": False})
            raise
        finally:
            self._source.close()

    def _comment(self) -> ServerSentEvent:
        progress = self._source.progress
        return ServerSentEvent(comment="prefill {}/{}".format(*progress) if progress else "ping", sep="\n")

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """No timeout is set, so none is waited for: the library's cancel scope took a third of an event's time."""
        await send(message)

    async def _encoded(self, events: AsyncIterator[dict[str, Any] | str]) -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield self._event(event)
        except GenaiServerError as error:
            yield self._error_event(error)
        except Exception:
            log.exception("a stream met an internal error")
            yield self._error_event(GenaiServerError("internal error; the server's log has more"))

    def _error_event(self, error: GenaiServerError) -> bytes:
        self._state["error_code"] = error.code
        return self._event(self._tell_error(error))

    def _event(self, value: dict[str, Any] | str) -> bytes:
        """One event as it goes over the wire (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
        if isinstance(value, str):
            return b"data: %b\n\n" % value.encode()
        data = msgspec.json.encode(value)
        for end, escape in _LINE_ENDS:
            if end in data:
                data = data.replace(end, escape)
        if self._named:
            return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), data)
        return b"data: %b\n\n" % data
