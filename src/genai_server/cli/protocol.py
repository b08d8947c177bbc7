"""Clients that are slow, idle or endless: uvicorn's HTTP connections with an end to each kind of waiting.

uvicorn's own parser takes heads of any size, and waits for ever for the first one and for a client that reads nothing.
"""

import asyncio
import json
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from genai_server.api.errors import FOR_BROWSERS

log = logging.getLogger(__name__)

_DEFAULT_HEAD = 65_536
# Bytes around a byte of a body: chunks may be short, but their framing is no way to send without end.
_FRAMING = 16


class _HeadTooLarge(Exception):
    """Ends the parsing."""


class GuardedProtocol(HttpToolsProtocol):
    """A connection that is closed if a head is too large, or none comes, or nothing of an answer is taken.

    A head may have `h11_max_incomplete_event_size` bytes of uvicorn's settings, and must be there `timeout_keep_alive`
    seconds after the connection was opened or had its last answer. Of an answer at most 64 KiB wait for the client
    (asyncio stops the writer there), for at most `stall_timeout` seconds during which it takes nothing.
    """

    def __init__(self, *args: Any, stall_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stall_timeout = stall_timeout
        self._most_head = self.config.h11_max_incomplete_event_size or _DEFAULT_HEAD
        self._head_size = 0
        # Of the request that is coming: what is body, and what is not.
        self._body_bytes = 0
        self._other_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._other_bytes += len(data)
        super().data_received(data)
        if self._other_bytes > self._most_head + _FRAMING * self._body_bytes and not self.transport.is_closing():
            self._head_size = self._other_bytes
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        if size > self._most_head:
            self._head_size = size
            raise _HeadTooLarge
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._other_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_bytes = self._other_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # the next request is not there already
            self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or one whose head is too large; where an answer is under way, hang up."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()
        elif not self._head_size:
            self._refuse(HTTPStatus.BAD_REQUEST, "invalid_http", "what was sent is no request of HTTP/1.1")
        else:
            message = (
                f"the head of a request may have at most {self._most_head} bytes (GENAI_MAX_HEADER_BYTES), "
                f"given {self._head_size} or more"
            )
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", message)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """Answer what never reaches the app, as the app would, and close the connection."""
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        headers = {
            **FOR_BROWSERS,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {status:d} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _wait_for_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self._no_head)

    def _no_head(self) -> None:
        # What the client does not take would keep a closed connection open.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _watch_reader(self) -> None:
        untaken = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._stall_timeout, self._check_reader, untaken)

    def _check_reader(self, untaken: int) -> None:
        if self.transport.get_write_buffer_size() < untaken:
            self._watch_reader()
        else:
            log.info("cut off a client that has taken nothing for %g s (GENAI_STALL_TIMEOUT)", self._stall_timeout)
            self.transport.abort()
