"""Server-sent events of the answers to one request."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.types import Message, Receive, Scope, Send

from genai_server.api.errors import error_body, internal_error
from genai_server.errors import GenaiServerError, ServerStopping

log = logging.getLogger(__name__)

# At a shutdown running answers continue within uvicorn's time limit. Without this they would have no last event.
AppStatus.enable_automatic_graceful_drain = False

# Some clients take these for line ends, though server-sent events do not; JSON has escapes for them.
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")

# How an endpoint that may stream documents its 200.
STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

# A JSON object, the JSON of one, or a plain word.
Event = dict[str, Any] | bytes | str


class Source(Protocol):
    """The source of the events."""

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of prompts that have been read, and of how many; None once all have been read."""
        ...

    def close(self) -> None:
        """Free it; always called."""
        ...


def event_bytes(value: Event, *, named: bool = False) -> bytes:
    """One event as it goes over the wire (https://html.spec.whatwg.org/multipage/server-sent-events.html).

    `named` gives an event its `type` as its name.
    """
    if isinstance(value, str):
        return b"data: %b\n\n" % value.encode()
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    if not data.isascii():
        for end, escape in _LINE_ENDS:
            data = data.replace(end, escape)
    if named and not isinstance(value, bytes):
        return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), data)
    return b"data: %b\n\n" % data


class EventStream(EventSourceResponse):
    """Sends events, each a JSON object, its JSON or a plain word, and closes their source however the response ends.

    An error after the headers is the last event. The next event is made when the last one is sent: for a slow client
    tokens gather, not text. Every few seconds a comment, which clients skip, keeps the connection open and reports the
    progress of the prompt.
    """

    DEFAULT_PING_INTERVAL = 5
    MEDIA_TYPE = "text/event-stream"

    def __init__(
        self,
        source: Source,
        events: AsyncGenerator[Event],
        *,
        named: bool = False,
        tell_error: Callable[[GenaiServerError], dict[str, Any]] | None = None,
    ) -> None:
        self._source = source
        # Whether an event's name is its `type`.
        self._named = named
        self._scope: Scope = {"state": {}}
        # Makes the last event of an error; None for the form of the API.
        self._tell_error = tell_error
        self._events = events
        super().__init__(events, media_type=self.MEDIA_TYPE, ping_message_factory=self._comment)
        # The library always sets it, but the client may have asked to close the connection.
        del self.headers["connection"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        # A generator's own `finally` is not enough: cancelled before its first step, it never runs.
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            # The server stops, and its time limit is over.
            last = self._error_event(ServerStopping())
            await send({"type": "http.response.body", "body": last, "more_body": False})
            raise
        finally:
            self._source.close()

    def _comment(self) -> ServerSentEvent:
        progress = self._source.progress
        return ServerSentEvent(comment="prefill {}/{}".format(*progress) if progress else "ping", sep="\n")

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Send without a timeout: none is set, and the library's cancel scope took a third of an event's time."""
        await send(message)

    async def _stream_response(self, send: Send) -> None:
        """Send the events. The library's own loop has more steps for each."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        is_over = False
        try:
            while not is_over:
                try:
                    data = self._event(await anext(self._events))
                except StopAsyncIteration:
                    break
                except GenaiServerError as error:
                    data, is_over = self._error_event(error), True
                except Exception:
                    log.exception("a stream met an internal error")
                    data, is_over = self._error_event(internal_error()), True
                await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            await self._events.aclose()
        async with self._send_lock:
            self.active = False
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _error_event(self, error: GenaiServerError) -> bytes:
        self._scope["state"]["error_code"] = error.code
        return self._event(error_body(error, self._scope) if self._tell_error is None else self._tell_error(error))

    def _event(self, value: Event) -> bytes:
        return event_bytes(value, named=self._named)
