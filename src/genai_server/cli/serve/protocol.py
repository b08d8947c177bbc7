"""uvicorn's HTTP and WebSocket connections, with limits for clients that are slow, idle or send without end:
`GuardedProtocol` for HTTP and `GuardedWebSocket`.

uvicorn's own parser accepts request heads of any size, and waits without limit for the first head and for clients that
do not read.
"""

import asyncio
import json
import logging
import socket
import sys
from collections import deque
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from genai_server.cli.serve.process_limits import max_files
from genai_server.errors import BodiesTooLarge, GenaiServerError, HeadTooLarge, MalformedHead, TooManyConnections
from genai_server.http.body_budget import BODY_BUDGET, BODY_KEY, BodyBudget, HeldBody
from genai_server.http.error_responses import BROWSER_HEADERS, error_body, http_status
from genai_server.http.request_state import Receipt, receipt_of, with_receipt
from genai_server.timing import ARRIVAL_KEY, request_clock

log = logging.getLogger(__name__)


class StallGuard(asyncio.Protocol):
    """The part of a connection that `GuardedProtocol` and `GuardedWebSocket` share: it ends the connection if the
    client reads nothing of its response for `stall_timeout` seconds.

    At most 64 KiB of a response are buffered for the client, because asyncio then pauses the writer.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def __init__(self, *args: Any, stall_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stall_timeout = stall_timeout
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _watch_reader(self) -> None:
        untaken = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._stall_timeout, self._check_reader, untaken)

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _check_reader(self, untaken: int) -> None:
        if self.transport.get_write_buffer_size() < untaken:
            self._watch_reader()
        else:
            log.info("disconnected a client that read nothing for %g s (GENAI_STALL_TIMEOUT)", self._stall_timeout)
            self.transport.abort()


_DEFAULT_HEAD = 65_536
# Framing bytes allowed for each byte of a body: chunks may be short, but framing alone must not continue forever.
_FRAMING = 16
# Open files reserved for everything but connections: starting an engine, its socket, downloads.
_RESERVE = 16
# Seconds for a connection that uses a reserved file to send its request.
_RESERVED_FILE_TIMEOUT = 2
# Seconds between two looks at a connection whose client has ended its sending side.
_CHECK_INTERVAL = 0.05
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _HeadTooLarge(Exception):
    """Raised inside the HTTP parser to stop it when a request's head (request line and headers) exceeds the maximum
    size.
    """


class GuardedProtocol(StallGuard, HttpToolsProtocol):
    """An HTTP connection of uvicorn that is closed if the head (request line and headers) of a request is too large or
    arrives too late, or if the client stops reading the response. uvicorn creates one for each connection.

    A head may have `h11_max_incomplete_event_size` bytes (a setting of uvicorn). It must arrive within
    `timeout_keep_alive` seconds after the connection was opened (including the TLS handshake) or the last response was
    sent.

    Malformed HTTP is refused with the reason, after the responses to the requests before it. When few file descriptors
    are left, the request of a new connection is refused and the connection is closed. A client that closes its sending
    side after a complete HTTP/1.1 request still gets the response.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Over TLS the connection is made after its handshake, which counts towards the time of the first head.
        self._accepted = self.loop.time()
        self._max_head = self.config.h11_max_incomplete_event_size or _DEFAULT_HEAD
        self._head_size = 0
        # Bytes received of the current request: of its body, and of everything else.
        self._body_bytes = 0
        self._other_bytes = 0
        # Whether the body of the current request is still incomplete.
        self._in_body = False
        # Set by the first refusal; all later input is dropped.
        self._refusal: GenaiServerError | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        # The cycle whose answer is sent now; the newest one is `cycle`.
        self._running: RequestResponseCycle | None = None
        self._half_closed: HalfClosed | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._count_files()
        if self._refusal is None:
            self._wait_for_head(since=self._accepted)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        if self._half_closed is not None:
            self._half_closed.stop()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle that the client has closed its sending side (called by asyncio).

        Returns whether to keep the connection open, which is done for a client that still waits for its response.
        """
        running = self._running
        # TLS has no half-closed connections, and an HTTP/1.0 client takes an interim response for the answer.
        if running is None or self.scheme == "https" or running.scope["http_version"] < "1.1":
            return False
        if self._in_body or self.cycle.response_complete:
            return False
        self.cycle.keep_alive = self._refusal is not None  # which follows the answer, and closes the connection
        if self._half_closed is None:
            self._half_closed = HalfClosed(self.loop, self.transport)
            self._half_closed.watch(running)
        return True

    def data_received(self, data: bytes) -> None:
        self._other_bytes += len(data)
        if self._refusal is None:
            super().data_received(data)
            self._limit_framing()
        elif self._other_bytes > self._max_head:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        receipt = replace(receipt_of(self.app_state), arrived=request_clock())
        self.scope["state"].update(with_receipt(receipt))

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        if size > self._max_head:
            self._head_size = size
            raise _HeadTooLarge
        if self._head_timer is not None:
            self._head_timer.cancel()
        before, app = self.cycle, self.app
        unchunked: Unchunked | None = None
        if self.parser.get_http_version() < "1.1":
            self.expect_100_continue = False  # an HTTP/1.0 client would take the 100 for the answer
            self.app = unchunked = Unchunked(app)
        super().on_headers_complete()
        if unchunked is not None:
            self.app, unchunked.cycle = app, self.cycle
        if self.cycle is not before and not self.pipeline:
            self._running = self.cycle
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._other_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_bytes = self._other_bytes = 0
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        queued = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if queued is not None:
            self._running = queued
        elif self._refusal is not None:
            self._refuse(self._refusal)
        elif self.cycle.response_complete:  # no further request has arrived yet
            self._wait_for_head(since=self.loop.time())

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is malformed HTTP, or whose head is too large, after the responses to the requests before
        it. uvicorn calls this; its own `msg` is not used.
        """
        self._refusal = self._request_error(sys.exception())
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            self._refuse(self._refusal)
        elif self._in_body and self.pipeline:  # the body belongs to a request that has not started
            self.pipeline.popleft()
        elif self._in_body and cycle.response_started:
            cycle.keep_alive = False
            if cycle.response_complete:
                self.transport.close()
        elif self._in_body or cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self._refuse(self._refusal)

    def _count_files(self) -> None:
        """If few file descriptors are left, shorten the time that this new connection may stay idle, or refuse it at
        once if they hardly suffice.

        The number of descriptors in use is estimated from the connection's own descriptor, because the system always
        assigns the lowest free one.
        """
        limit = max_files()
        reserve = min(_RESERVE, limit / 4)
        available = limit - self.transport.get_extra_info("socket").fileno()
        if available > reserve:
            return
        self.app_state = {**self.app_state, **with_receipt(Receipt(max_files=limit))}
        self.timeout_keep_alive = min(self.timeout_keep_alive, _RESERVED_FILE_TIMEOUT)
        if available <= reserve // 2:  # too few even to wait for its request
            self._refusal = TooManyConnections(f"as many connections are open as the limit of files ({limit}) allows")
            self._refuse(self._refusal)

    def _request_error(self, error: BaseException | None) -> GenaiServerError:
        if not self._head_size:
            reason = error if error is None or error.__context__ is None else error.__context__
            return MalformedHead(f"what was sent is no request of HTTP/1.1: {reason}")
        return HeadTooLarge(
            f"the head of a request may have at most {self._max_head} bytes (GENAI_MAX_HEADER_BYTES), "
            f"given {self._head_size} or more"
        )

    def _refuse(self, error: GenaiServerError) -> None:
        """Write an error response to a request that never reaches the app, in the JSON form in which the app reports
        errors, and close the connection.
        """
        status = HTTPStatus(http_status(error)[0])
        body = json.dumps(error_body(error)).encode()
        headers = {
            **BROWSER_HEADERS,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        if error.retry_after is not None:
            headers["retry-after"] = str(error.retry_after)
        lines = [f"HTTP/1.1 {status:d} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()

    def _limit_framing(self) -> None:
        if self._refusal is None and self._other_bytes > self._max_head + _FRAMING * self._body_bytes:
            self._head_size = self._other_bytes
            self.send_400_response("")

    def _wait_for_head(self, *, since: float) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_at(since + self.timeout_keep_alive, self._no_head)

    def _no_head(self) -> None:
        # Unread output would keep a closed connection open.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()


class HalfClosed:
    """Watches a connection whose client has closed its sending side while it waits for a response, and ends the
    connection if the client has in fact left.

    The operating system reports both cases in the same way. To distinguish them, bytes are sent that do not change the
    response: the system of a client that has left answers with a reset.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, running: RequestResponseCycle) -> None:
        """Begin to watch while the request `running` is answered: send bytes that have no meaning for a client that
        waits for the response, and check repeatedly whether the connection is reset.
        """
        if not running.response_started:
            self._transport.write(_CONTINUE)  # an interim response, which HTTP/1.1 allows at any number
        elif running.chunked_encoding:
            self._transport.write(b"0")  # a leading zero of the next chunk's size
        self._check()

    def stop(self) -> None:
        """Stop checking whether the client has left; called when the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(_CHECK_INTERVAL, self._check)


class Unchunked:
    """Wraps an ASGI app for HTTP/1.0 clients: a response of unknown length is ended by closing the connection.

    HTTP/1.0 clients do not understand chunked transfer coding, with which uvicorn would send such a response. The
    wrapper sets uvicorn's count of remaining bytes for each piece.
    """

    # The request cycle of the app's call; set before that.
    cycle: RequestResponseCycle

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_plainly(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = "content-length" in Headers(raw=message.get("headers", []))
                if not has_length:
                    self.cycle.chunked_encoding = False
            elif not has_length:
                self.cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_plainly)


# Bytes that a fragment takes in addition to its data.
_FRAGMENT = 48


class GuardedWebSocket(StallGuard, WebSocketsSansIOProtocol):
    """A WebSocket connection of uvicorn that is closed if a message takes more than `body_timeout` seconds to arrive,
    or if with it the messages and request bodies in memory would exceed the limit for all of them together.

    A message counts toward that limit from its first byte until the app receives it.
    """

    def __init__(self, *args: Any, body_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)
        # In seconds.
        self._body_timeout = body_timeout
        self._bodies: BodyBudget = self.app_state[BODY_BUDGET]
        # Counts the bytes of messages that the app has not received; None before the first one.
        self._held: HeldBody | None = None
        # Number of complete messages that the app has not received, and of fragments of the next one.
        self._num_whole = 0
        self._num_fragments = 0
        # Runs while a message is incomplete.
        self._message_timer: asyncio.TimerHandle | None = None
        # When the first byte of the next message came, by `request_clock`; None before it.
        self._begun: float | None = None
        # When each complete message that the app has not received arrived.
        self._arrivals: deque[float] = deque()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._num_whole = self._num_fragments = 0
        self._count(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._begun = self._begun or request_clock()
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not (unread := self._num_unread):
            self._begun = None
            self._stop_waiting()
        elif self._message_timer is None:
            self._wait_for_end()
        try:
            self._count(self._num_whole + unread)
        except BodiesTooLarge as error:
            self._refuse_size(error)

    def handle_text(self, event: Frame) -> None:
        self._num_fragments += _FRAGMENT + len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._num_fragments += _FRAGMENT + len(event.data)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._num_fragments += _FRAGMENT + len(event.data)
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        self._stop_waiting()
        self._num_whole += self._num_fragments
        self._num_fragments = 0
        # uvicorn would log a traceback.
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_utf8(b"".join(self.frames)):
            self._refuse(CloseCode.INVALID_DATA, "a text message must be UTF-8")
            return
        num_before = self.queue.qsize()
        super().send_receive_event_to_app()
        if self.queue.qsize() > num_before:  # uvicorn drops a message after the close
            self._arrivals.append(self._begun or request_clock())
        self._begun = request_clock()  # the next message may follow in the same bytes

    async def receive(self) -> Any:
        """Return the next ASGI event of the WebSocket for the app. An event with a message also has the time at which
        the message arrived.
        """
        event = await super().receive()
        if self.queue.empty() and not self.disconnected:
            self._num_whole = 0
            self._count(self._num_unread)
        return {**event, ARRIVAL_KEY: self._arrivals.popleft()} if event["type"] == "websocket.receive" else event

    @property
    def _num_unread(self) -> int:
        """How many bytes have arrived of the message that is not complete yet, including an incomplete frame."""
        return self._num_fragments + len(self.conn.reader.buffer)

    def _count(self, num_bytes: int) -> None:
        if self._held is None:
            if not num_bytes:
                return
            state = getattr(self, "scope", {}).get("state", {})  # no scope after a malformed handshake
            self._held = self._bodies.open(state.get(BODY_KEY), self._refuse_size)
        self._held.resize(num_bytes)

    def _refuse_size(self, error: BodiesTooLarge) -> None:
        self._refuse(CloseCode.TRY_AGAIN_LATER, "all bodies together are too large (GENAI_MAX_BODIES_BYTES)")

    def _wait_for_end(self) -> None:
        self._message_timer = self.loop.call_later(self._body_timeout, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def _too_slow(self) -> None:
        if self.read_paused:  # the app keeps the client waiting
            self._wait_for_end()
        else:
            reason = f"a message must come within {self._body_timeout:g} seconds (GENAI_BODY_TIMEOUT)"
            self._refuse(CloseCode.POLICY_VIOLATION, reason)

    def _refuse(self, code: CloseCode, reason: str) -> None:
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.disconnected = True  # for the app, which may receive and send before the connection is lost
        self.transport.close()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
