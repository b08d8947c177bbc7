"""A limit for clients that do not read their response, for which uvicorn would wait without limit."""

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)


class ReaderGuard(asyncio.Protocol):
    """Ends a connection whose client reads nothing of its response for `stall_timeout` seconds.

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
