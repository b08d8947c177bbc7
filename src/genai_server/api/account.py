"""What each HTTP request has come to: kept while it lasts, and told at its end to whoever keeps books."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.answer import Answer, usage_of
from genai_server.generation import GenerationRequest, Sampling
from genai_server.openai_api.usage import Usage
from genai_server.timing import Clock

log = logging.getLogger(__name__)


@dataclass
class Account:
    """One request, complete when it is told.

    `began` is a time of the clock, `began_at` the same in seconds since 1970, `seconds` how long it took. What is
    refused has a status but no answers, and no device unless one was found. `asked` is how the tokens of all answers
    are chosen, `max_tokens` the most of each; None as long as no engine has taken it.
    """

    scope: Scope
    model: str
    began: float
    began_at: float = field(default_factory=time.time)
    seconds: float = 0.0
    status: int = 0
    device: str = ""
    answers: Sequence[Answer] = ()
    num_per_prompt: int = 1
    is_streamed: bool = False
    asked: Sampling | None = None
    max_tokens: int | None = None

    def answered(self, answers: Sequence[Answer], num_per_prompt: int, request: GenerationRequest) -> None:
        """An engine has taken it; `request` is one of the answers'."""
        self.answers, self.num_per_prompt = answers, num_per_prompt
        self.asked, self.max_tokens = request.sampling, request.max_tokens

    @property
    def request_id(self) -> str:
        """Its name."""
        name: str = self.scope["state"]["request_id"]
        return name

    @property
    def path(self) -> str:
        """The path with its parameters' names; empty where no route is, for strangers write there what they like."""
        found: str = getattr(self.scope.get("route"), "path", "")
        return found

    @property
    def error_code(self) -> str | None:
        """The code of the error that it was answered with, before or after the headers."""
        found: str | None = self.scope["state"].get("error_code")
        return found

    @property
    def is_look(self) -> bool:
        """Whether it asks for nothing to be done."""
        return self.scope["method"] in ("GET", "HEAD", "OPTIONS")

    @property
    def usage(self) -> Usage:
        """The tokens of all answers together."""
        return usage_of(self.answers, self.num_per_prompt)


# Keeps books of requests that have ended; must not block.
Observer = Callable[[Account], None]


class Accounts:
    """Keeps an account of each request, in its scope's state; plain ASGI.

    An answer in one piece says in `Server-Timing` where its time went.
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
        account = Account(scope, self._model, self._clock())
        scope["state"]["account"] = account

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                account.status = message["status"]
                headers = MutableHeaders(scope=message)
                account.is_streamed = headers.get("content-type", "").startswith("text/event-stream")
                if account.answers and not account.is_streamed:
                    total = self._clock() - account.began
                    headers["server-timing"] = server_timing(account.answers[0], total)
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except BaseException:
            account.status = account.status or 500
            raise
        finally:
            account.seconds = self._clock() - account.began
            for observe in self._observers:
                try:
                    observe(account)
                except Exception:  # a full disk, say; the client has had its answer
                    log.exception("the books of request %s are not complete", account.request_id)


def server_timing(answer: Answer, total: float) -> str:
    """Where the time of an answer went, in milliseconds (https://www.w3.org/TR/server-timing/); `total` in seconds."""
    phases = answer.phases
    times = {"queue": phases.queue, "prefill": phases.prefill, "decode": phases.decode, "total": total}
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in times.items())
