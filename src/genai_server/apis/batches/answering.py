"""Sends the requests of batches to the server's own app, and retries while the server cannot accept them."""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from genai_server.batch_files import BatchLine
from genai_server.errors import EngineDied, EngineHung
from genai_server.http.inner_request import InnerResponse, disconnect_at
from genai_server.http.middleware.body import replayed
from genai_server.http.request_state import OnBehalf, Receipt, request_state, with_receipt
from genai_server.messages.generation_request import FinishReason

log = logging.getLogger(__name__)

# Seconds until the next attempt: at least, if the response asks for no longer pause, and at most.
_PAUSE = 1.0
_MAX_PAUSE = 30.0
# If the engine dies while it runs a request, the request may be the reason. It is sent again after a random number of
# seconds, so that it does not run next to the same requests again, and fails after this number of deaths.
_MAX_DEATHS = 3
_DEATH_PAUSE = (1.0, 10.0)
_DEATHS = (EngineDied.code, EngineHung.code)
_UNAVAILABLE = 503


@dataclass(frozen=True)
class Answered:
    """The app's response to a request of a batch: status, request id and JSON body."""

    status: int
    request_id: str
    # JSON.
    body: bytes


class Stop:
    """The order to stop one batch, with its reason. The batch's BatchRun creates it. Once the order is given, no
    further requests of the batch are sent, and those that are being answered are cancelled.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        # Why; empty while it runs.
        self.reason = ""

    def __call__(self, reason: str) -> None:
        """Order the stop for this reason. If the stop has already been ordered, the first reason is kept."""
        self.reason = self.reason or reason
        self.event.set()

    def is_set(self) -> bool:
        """Whether the stop has been ordered."""
        return self.event.is_set()

    async def within(self, seconds: float) -> bool:
        """Wait until the stop is ordered, but at most `seconds`. Returns whether it has been ordered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.event.wait()
        return self.event.is_set()


class Answering:
    """Sends the requests of all batches that this process runs, at most `max_running` at a time."""

    def __init__(
        self, app: ASGIApp, max_running: int, is_draining: Callable[[], bool], count: Callable[[str], None]
    ) -> None:
        self.max_running = max_running
        self._app = app
        self._slots = asyncio.Semaphore(max_running)
        self.is_draining = is_draining
        # Counts a request that is `completed`, `failed` or `retried`.
        self.count = count

    async def answer(self, line: BatchLine, on_behalf: OnBehalf, stop: Stop) -> Answered | None:
        """Send a line of a batch's input file to the app as a request, and return the app's response, whether it is an
        answer or an error; None if `stop` is ordered before the response is complete.

        `on_behalf` says for whom the batch runs. The request is sent again while the server is busy, loads a model or
        is about to stop, and after the death of an engine that may be due to other requests.
        """
        deaths = 0
        while not stop.is_set():
            async with self._slots:
                if stop.is_set():
                    return None
                scope, response = await self._send(line, on_behalf, stop)
            if stop.is_set() and response.status != 200:
                return None
            record = request_state(scope).record
            died = record.error_code in _DEATHS
            deaths += died
            is_partial = any(answer.outcome == FinishReason.TERMINATED for answer in record.answers)
            is_refused = response.status == _UNAVAILABLE or (response.status >= 400 and self.is_draining())
            if not (is_refused or is_partial or (died and deaths < _MAX_DEATHS)):
                return Answered(response.status, record.unique_id, response.body)
            self.count("retried")
            await stop.within(random.uniform(*_DEATH_PAUSE) if died else _pause(response))
        return None

    async def _send(self, line: BatchLine, on_behalf: OnBehalf, stop: Stop) -> tuple[Scope, InnerResponse]:
        scope, response = _scope(line, on_behalf), InnerResponse()
        try:
            await self._app(scope, replayed(line.body, disconnect_at(stop.event)), response.send)
        except Exception:
            log.exception("internal error in a request of a batch")
        response.status = response.status or 500
        return scope, response


def _pause(response: InnerResponse) -> float:
    given = Headers(raw=response.headers).get("retry-after", "")
    seconds = float(given) if given.isdecimal() else _PAUSE
    return min(max(seconds, _PAUSE), _MAX_PAUSE) * random.uniform(1.0, 1.25)


def _scope(line: BatchLine, on_behalf: OnBehalf) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": line.url,
        "raw_path": line.url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(line.body)).encode())],
        "client": None,
        "server": None,
        "extensions": {},
        "state": with_receipt(Receipt(is_counted=True, on_behalf=on_behalf)),
    }
