"""A record of each HTTP request, which the observers (log, metrics, traces) get when it has ended."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import asdict
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.generation.answers import AnswerFigures, usage_of
from genai_server.generation import GenerationRequest, Sampling
from genai_server.openai_api.usage import Usage
from genai_server.timing import ARRIVED, Arrival, Clock, Timings

log = logging.getLogger(__name__)

# Content types of streams.
_STREAMS = ("text/event-stream", "application/x-ndjson")


@dataclass
class RequestRecord:
    """One HTTP request. A refused one has a status but no answers."""

    scope: Scope
    # The model's name in answers; the first model's until one is chosen.
    model: str
    arrival: Arrival
    # Seconds since 1970 at the arrival.
    began_at: float
    # How long the request took; known at its end.
    seconds: float = 0.0
    # HTTP's status; 0 until the response has begun.
    status: int = 0
    # "" until one is chosen.
    device: str = ""
    # Answers to the same prompt stand side by side.
    answers: Sequence[AnswerFigures] = ()
    num_per_prompt: int = 1
    is_streamed: bool = False
    # How tokens are chosen; None until an engine has accepted the request.
    asked: Sampling | None = None
    # Most tokens of each answer; None until an engine has accepted the request.
    max_tokens: int | None = None
    # Whether it goes on after its HTTP response, until `end` is called.
    is_detached: bool = False
    # Passes it to the observers.
    end: Callable[[], None] = lambda: None

    def answered(self, answers: Sequence[AnswerFigures], num_per_prompt: int, request: GenerationRequest) -> None:
        """Note the answers that an engine has accepted; `request` is the engine request of any of them."""
        self.answers, self.num_per_prompt = answers, num_per_prompt
        self.asked, self.max_tokens = request.sampling, request.max_tokens

    def pooled(self, answer: AnswerFigures) -> None:
        """Note a request for vectors or scores that an engine has accepted."""
        self.answers = [answer]

    @property
    def request_id(self) -> str:
        """The request's id, which is the client's if it gave one."""
        name: str = self.scope["state"]["request_id"]
        return name

    @property
    def unique_id(self) -> str:
        """The server's own id, which no other request has."""
        name: str = self.scope["state"]["unique_id"]
        return name

    @property
    def path(self) -> str:
        """The route's path with its parameters' names; empty without a route, as clients may send any path."""
        found: str = getattr(self.scope.get("route"), "path", "")
        return found

    @property
    def error_code(self) -> str | None:
        """The code of the error in its response, before or after the headers."""
        found: str | None = self.scope["state"].get("error_code")
        return found

    @property
    def is_look(self) -> bool:
        """Whether the request only reads."""
        return self.scope["method"] in ("GET", "HEAD", "OPTIONS")

    @property
    def usage(self) -> Usage:
        """Tokens of all answers together."""
        return usage_of(self.answers, self.num_per_prompt)


# Receives each request that has ended; must not block.
Observer = Callable[[RequestRecord], None]


class RequestRecords:
    """Puts a RequestRecord into each scope's state, and passes it to the observers at the end. Plain ASGI.

    Closes the request's answers then, however its response ended. A response in one piece has a `Server-Timing` header.
    """

    def __init__(self, app: ASGIApp, model: str, clock: Clock, observers: Sequence[Observer]) -> None:
        self.app = app
        self._model = model
        self._clock = clock
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrival = Arrival(self._clock, scope["state"].get(ARRIVED))
        record = RequestRecord(scope, self._model, arrival, time.time() - arrival.elapsed)
        record.end = partial(self._end, record)
        scope["state"]["record"] = record

        async def receive_noted() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                arrival.received()
            return message

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                record.is_streamed = headers.get("content-type", "").startswith(_STREAMS)
                if record.answers and not record.is_streamed:
                    headers["server-timing"] = server_timing(record.answers[0].timings(), arrival.elapsed)
            await send(message)

        try:
            await self.app(scope, receive_noted, send_noted)
        except BaseException:
            record.status = record.status or 500
            raise
        finally:
            if not record.is_detached:
                record.end()

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
