"""What surrounds every request: `RequestLifetime`, the outermost middleware, creates the state of the request,
completes its response headers, and passes its record to log and metrics. `Drain` and `DrainMiddleware` let running
requests finish before the server stops.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from urllib.parse import unquote_to_bytes

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.errors import (
    GenaiServerError,
    MalformedHead,
    ServerDraining,
    ServerStopping,
    TooManyConnections,
    quoted,
)
from genai_server.http.error_responses import BROWSER_HEADERS, error_response, internal_error
from genai_server.http.error_wording import Dialect
from genai_server.http.request_state import HttpRequestState, request_id_headers, request_state, start_request
from genai_server.http.telemetry.request_record import Observer, RequestRecord
from genai_server.timing import Clock, Timings, request_clock

log = logging.getLogger(__name__)

# Paths that need no key, and are open on surplus connections: they tell whether the server lives and works.
OPEN_PATHS = frozenset({"/", "/health", "/healthz", "/livez", "/readyz"})
# Content types of streams.
_STREAMS = ("text/event-stream", "application/x-ndjson")
# Seconds in which requests that are cut off send their last event or response, also to slow clients.
CANCELLED_SEND_TIMEOUT = 5.0
# Characters of a malformed head that its error shows.
_MAX_SHOWN = 100


class Drain:
    """Counts the running requests of this process and ends them when the server stops. For use in the event loop only.

    It has two states. At first requests may begin; once `run` has been called, the process drains: running requests may
    finish within `timeout` seconds, and no new request may begin.
    """

    def __init__(self, timeout: float) -> None:
        # In seconds.
        self.timeout = timeout
        self.is_draining = False
        # Requests that could not continue to their ends; known after `run`.
        self.num_cut_off = 0
        self._cancels_now = False
        self._running: set[asyncio.Task[object]] = set()
        self._cut_off: set[asyncio.Task[object]] = set()
        self._changed = asyncio.Event()

    def require_open(self) -> None:
        """Raise ServerDraining if the process drains, so that no new request may begin."""
        if self.is_draining:
            raise ServerDraining

    async def run(self) -> None:
        """Begin to drain, and wait until no request is running. Requests that still run after the timeout, or after a
        call of `hurry`, are cancelled; they have a few seconds to send an error.
        """
        self.is_draining = True
        await self._wait(self.timeout)
        self._cut_off = set(self._running)
        self.num_cut_off = len(self._cut_off)
        for task in self._cut_off:
            task.cancel()
        self._cancels_now = False
        await self._wait(CANCELLED_SEND_TIMEOUT)

    def hurry(self) -> None:
        """Let `run` cancel the running requests now instead of after the timeout."""
        self._cancels_now = True
        self._changed.set()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Context manager in whose block the current task counts as a running request. The drain waits for the task,
        and may cancel it.
        """
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)
            self._cut_off.discard(task)
            self._changed.set()

    def cuts_off(self) -> bool:
        """Return whether the drain has cancelled the current task, as opposed to anything else that cancels tasks."""
        return asyncio.current_task() in self._cut_off

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running and not self._cancels_now:
                    self._changed.clear()
                    await self._changed.wait()


class DrainMiddleware:
    """A pure ASGI middleware that counts running requests for the `Drain`, which lets them finish before the server
    stops. It answers the requests that the drain cancels after its timeout with an error.

    A request counts when its body has arrived, so the drain waits for no slow client. Low-priority requests of batches
    and background responses do not count, because they are repeated after the next start.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or request_state(scope).low_priority:
            await self.app(scope, receive, send)
            return
        with self.drain.counting():
            try:
                await self.app(scope, receive, send)
            except asyncio.CancelledError:
                if not self.drain.cuts_off():
                    raise
                if not request_state(scope).record.status:
                    await error_response(ServerStopping(), scope)(scope, receive, send)


class RequestLifetime:
    """A pure ASGI middleware that creates each request's state, completes its response, and passes its record at the
    end to the observers, functions that write the log and count requests.

    This is the outermost middleware of HTTP requests, and the only one that wraps `send`, which is called for every
    streamed token. It adds the headers that all responses have. It treats a HEAD request as a GET whose body is not
    sent.

    It refuses connections beyond the limit of open files, except at OPEN_PATHS, which are used for health checks. It
    also refuses request heads that two programs could read differently: with several Host headers, of which another
    program may use the second, or with a path or query that is not UTF-8.

    An unexpected exception is logged and answered with status 500, and the connection stays open. Starlette's own
    handler would raise the exception again, and uvicorn would then close the connection, on which the client may
    already have sent its next request. A response that has begun is cut off instead.
    """

    def __init__(
        self,
        app: ASGIApp,
        model: str = "",
        clock: Clock = request_clock,
        observers: Sequence[Observer] = (),
        drain: Drain | None = None,
        dialects: Sequence[Dialect] = (),
    ) -> None:
        self.app = app
        # The formats of errors that the app has besides the default.
        self._dialects = dialects
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
        state = start_request(scope, self._model, self._clock, self._dialects)
        record = state.record
        record.end = partial(self._end, record)
        is_head = scope["method"] == "HEAD"
        # The server, the log and the others outside still see the HEAD.
        inner = {**scope, "method": "GET"} if is_head else scope
        refusal = _surplus(state) or _malformed(scope)
        app: ASGIApp = self.app if refusal is None else error_response(refusal, scope)

        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._complete(message, state)
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await app(inner, receive, send_completed)
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
        """Change `start`, the first message of a response: add the headers that all responses have. The request's
        record notes that the response has begun.
        """
        record = state.record
        record.status = start["status"]
        headers = MutableHeaders(scope=start)
        record.is_streamed = headers.get("content-type", "").startswith(_STREAMS)
        if record.answers and not record.is_streamed:
            headers["server-timing"] = server_timing(record.answers[0].timings(), record.arrival.elapsed)
        for name, value in BROWSER_HEADERS.items():
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


def _surplus(state: HttpRequestState) -> GenaiServerError | None:
    max_files = state.receipt.max_files
    if max_files is None or state.record.scope["path"] in OPEN_PATHS:
        return None
    return TooManyConnections(
        f"as many connections are open as the server's limit of open files ({max_files}) allows; try again"
    )


def _malformed(scope: Scope) -> GenaiServerError | None:
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1:
        listed = ", ".join(repr(host[:_MAX_SHOWN]) for host in hosts[:3])
        return MalformedHead(f"a request has one Host header, given {len(hosts)}: {listed}", param="Host")
    for name, value in (("path", scope.get("raw_path") or b""), ("query", scope.get("query_string", b""))):
        try:
            unquote_to_bytes(value).decode()
        except UnicodeDecodeError as error:
            wrong = error.object[error.start : error.end].hex().upper()
            return MalformedHead(
                f"the {name} must be UTF-8 once its %-escapes are bytes, given byte {wrong} "
                f"in {quoted(value[:_MAX_SHOWN].decode('latin-1'))}"
            )
    return None


def server_timing(timings: Timings, total: float) -> str:
    """Return the value of the `Server-Timing` header (https://www.w3.org/TR/server-timing/), which tells clients in
    milliseconds how long the phases of an answer took.

    `total` is the time since the request's arrival, in seconds. The part of it that the answer's own timings do not
    cover counts as delivery.
    """
    times = {"total": total}
    if timings.breakdown is not None:
        deliver = timings.breakdown.deliver + total - timings.total_latency
        times = asdict(timings.breakdown) | {"deliver": deliver} | times
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in times.items())
