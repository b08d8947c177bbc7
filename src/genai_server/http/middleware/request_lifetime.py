"""The beginning and the end of every request, and the start of every response."""

import logging
from collections.abc import Sequence
from functools import partial

from msgspec.structs import asdict
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.http.error_responses import FOR_BROWSERS, error_response, internal_error, request_id_headers
from genai_server.http.middleware.drain import Drain
from genai_server.http.request_state import HttpRequestState, begin_request
from genai_server.http.telemetry.request_record import Observer, RequestRecord
from genai_server.timing import Clock, Timings, request_clock

log = logging.getLogger(__name__)

# Content types of streams.
_STREAMS = ("text/event-stream", "application/x-ndjson")


class RequestLifetime:
    """Gives each request its state, completes its response, and passes its record to the observers. Plain ASGI.

    The outermost middleware of HTTP requests, and the only one that wraps `send`: every streamed token passes it. It
    adds the headers of every response, and leaves out the body of a HEAD, which all below see as a GET.

    An unexpected exception is logged and answered with 500, and the connection stays open; Starlette's own handler
    raises it again, and then uvicorn closes the connection, on which the client may have sent its next request. A
    response that has begun is cut off instead.
    """

    def __init__(
        self,
        app: ASGIApp,
        model: str = "",
        clock: Clock = request_clock,
        observers: Sequence[Observer] = (),
        drain: Drain | None = None,
    ) -> None:
        self.app = app
        # Recorded until a model is chosen.
        self._model = model
        self._clock = clock
        self._observers = observers
        # Connections are closed while it runs.
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = begin_request(scope, self._model, self._clock)
        record = state.record
        record.end = partial(self._end, record)
        is_head = scope["method"] == "HEAD"
        # The server, the log and the others outside still see the HEAD.
        inner = {**scope, "method": "GET"} if is_head else scope

        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._complete(message, state)
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self.app(inner, receive, send_completed)
        except Exception:
            if record.status:
                raise  # uvicorn logs it and closes the connection
            log.exception("request %s met an internal error", record.request_id)
            await error_response(internal_error(), scope)(scope, receive, send_completed)
        except BaseException:
            record.status = record.status or 500
            raise
        finally:
            if is_head and "route" in inner:
                scope["route"] = inner["route"]
            if not record.is_detached:
                record.end()

    def _complete(self, start: Message, state: HttpRequestState) -> None:
        """Note the start of a response, and add the headers that do not depend on its endpoint."""
        record = state.record
        record.status = start["status"]
        headers = MutableHeaders(scope=start)
        record.is_streamed = headers.get("content-type", "").startswith(_STREAMS)
        if record.answers and not record.is_streamed:
            headers["server-timing"] = server_timing(record.answers[0].timings(), record.arrival.elapsed)
        for name, value in FOR_BROWSERS.items():
            headers.setdefault(name, value)
        headers.update(request_id_headers(record.scope))
        if state.receipt.max_files is not None or (self._drain is not None and self._drain.is_draining):
            headers["connection"] = "close"

    def _end(self, record: RequestRecord) -> None:
        record.seconds = record.arrival.elapsed
        # Nothing else does it if the response cannot be built.
        for answer in record.answers:
            answer.close()
        for observe in self._observers:
            try:
                observe(record)
            except Exception:  # such as a full disk; the client has its response
                log.exception("an observer of request %s failed", record.request_id)


def server_timing(timings: Timings, total: float) -> str:
    """The `Server-Timing` header of an answer (https://www.w3.org/TR/server-timing/).

    `total` is in seconds. What it has more than the answer took is delivery.
    """
    times = {"total": total}
    if timings.breakdown is not None:
        deliver = timings.breakdown.deliver + total - timings.total_latency
        times = asdict(timings.breakdown) | {"deliver": deliver} | times
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in times.items())
