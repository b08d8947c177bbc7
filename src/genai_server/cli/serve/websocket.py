"""uvicorn's WebSockets with limits for clients that do not read, and for messages that do not end."""

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from genai_server.cli.serve.reader_guard import ReaderGuard
from genai_server.errors import BodiesTooLarge
from genai_server.http.body_budget import BODY_BUDGET, BODY_KEY, BodyBudget, HeldBody
from genai_server.timing import ARRIVED, request_clock

# Bytes that a fragment takes in addition to its data.
_FRAGMENT = 48


class GuardedWebSocket(ReaderGuard, WebSocketsSansIOProtocol):
    """A WebSocket that is closed if a message takes too long to arrive, or exceeds the limit of the memory that all
    request bodies together may take.

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
        """Return the next event for the app."""
        event = await super().receive()
        if self.queue.empty() and not self.disconnected:
            self._num_whole = 0
            self._count(self._num_unread)
        return {**event, ARRIVED: self._arrivals.popleft()} if event["type"] == "websocket.receive" else event

    @property
    def _num_unread(self) -> int:
        """The bytes of a message that is not complete, including an incomplete frame."""
        return self._num_fragments + len(self.conn.reader.buffer)

    def _count(self, kept: int) -> None:
        if self._held is None:
            if not kept:
                return
            state = getattr(self, "scope", {}).get("state", {})  # no scope after a malformed handshake
            self._held = self._bodies.open(state.get(BODY_KEY), self._refuse_size)
        self._held.resize(kept)

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
