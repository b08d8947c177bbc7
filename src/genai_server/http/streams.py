"""Responses that send the answers to a request as a stream: `EventStream` sends server-sent events, `LineStream` one
JSON object in each line.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from genai_server.errors import GenaiServerError, ServerStopping
from genai_server.http.error_responses import error_body, internal_error
from genai_server.http.request_state import request_state

log = logging.getLogger(__name__)

# Some clients take these for line ends, though server-sent events do not; JSON has escapes for them.
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")

# How an endpoint that may stream documents its 200.
STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

# A JSON object, the JSON of one, or a plain word.
Event = dict[str, Any] | bytes | str


class Source(Protocol):
    """What generates the content of a stream, such as the running answers of an engine. Whoever creates an EventStream
    passes it in, and the stream closes it at the end.
    """

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many prompt tokens the engine has processed, and how many there are in all; None once all are
        processed.
        """

    def close(self) -> None:
        """Free the source's resources, such as by cancelling answers that still run. Called at the end of every stream,
        however it ends.
        """


def event_bytes(value: Event, *, named: bool = False) -> bytes:
    """Return one server-sent event as bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html). `value`
    is the event's data: a JSON object, the JSON text of one, or a plain word.

    If `named` is True, the event also has a name, the value of the object's `type`.
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


class EventStream(StreamingResponse):
    """A response that sends `events` as server-sent events, and closes `source`, which generates them, at its end. Each
    event is a JSON object, the JSON text of one, or a plain word. If `named` is True, each event has its `type` as its
    name.

    An error that occurs after the headers becomes the last event, in the form of the request's API or as `make_error`
    makes it. The next event is generated only when the previous one has been sent, so tokens for a slow client wait in
    the source and are merged. Every few seconds a comment, which clients skip, keeps the connection open and reports
    the progress of reading the prompt.
    """

    # Seconds between two comments; 0 for none.
    COMMENT_INTERVAL: float = 5
    MEDIA_TYPE = "text/event-stream"

    def __init__(
        self,
        source: Source,
        events: AsyncGenerator[Event],
        *,
        named: bool = False,
        make_error: Callable[[GenaiServerError], dict[str, Any]] | None = None,
    ) -> None:
        self._source = source
        # Whether an event's name is its `type`.
        self._named = named
        self._scope: Scope = {}
        # Makes the last event of an error; None for the form of the API.
        self._make_error = make_error
        self._events = events
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # no cache and no proxy holds events back
        super().__init__((), headers=headers, media_type=self.MEDIA_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        sending = asyncio.create_task(self.stream_response(send))
        tasks = [sending, asyncio.create_task(self.listen_for_disconnect(receive))]
        if self.COMMENT_INTERVAL:
            tasks.append(asyncio.create_task(self._send_comments(send)))
        # A generator's own `finally` is not enough: cancelled before its first step, it never runs.
        try:
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()
            if not sending.cancelled():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            # The server stops, and its time limit is over.
            last = self._error_event(ServerStopping())
            await send({"type": "http.response.body", "body": last, "more_body": False})
            raise
        finally:
            self._source.close()

    async def stream_response(self, send: Send) -> None:
        """Send the headers and all events by the ASGI function `send`; an error becomes the last event."""
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

    async def _send_comments(self, send: Send) -> None:
        """Send a comment, which clients skip, every few seconds until cancelled. It reports the progress of reading the
        prompt, if there is any.
        """
        while True:
            await asyncio.sleep(self.COMMENT_INTERVAL)
            progress = self._source.progress
            comment = b": prefill %d/%d\n\n" % progress if progress else b": ping\n\n"
            await send({"type": "http.response.body", "body": comment, "more_body": True})

    def _error_event(self, error: GenaiServerError) -> bytes:
        request_state(self._scope).record.error_code = error.code
        return self._event(error_body(error, self._scope) if self._make_error is None else self._make_error(error))

    def _event(self, value: Event) -> bytes:
        return event_bytes(value, named=self._named)


# OpenAPI description of the status 200 of endpoints that may stream lines.
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}}


def line_bytes(value: Event) -> bytes:
    """Return a JSON object as one line of bytes, with its line feed."""
    return msgspec.json.encode(value) + b"\n"


class LineStream(EventStream):
    """A response that sends each event as a line of JSON (newline-delimited JSON), and otherwise works like
    EventStream. The format has no comments, so nothing keeps an idle connection open.
    """

    COMMENT_INTERVAL = 0
    MEDIA_TYPE = "application/x-ndjson"

    def _event(self, value: Event) -> bytes:
        return line_bytes(value)
