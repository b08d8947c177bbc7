"""Who waits for an answer: for how long, and whether still."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.types import Receive

from genai_server.api.account import Account
from genai_server.api.services import TheServices
from genai_server.errors import InvalidField, ServerStopping
from genai_server.timing import Clock

T = TypeVar("T")

HEADER = "X-Request-Timeout"


class ClientLeft(Exception):
    """Nobody is there any more to take the answer."""


class Deadline:
    """When an answer must have ended, by a clock in seconds: `limit` seconds (GENAI_REQUEST_TIMEOUT) after now."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._began = clock()
        self._seconds = float(limit)

    def tighten(self, seconds: float, *, param: str) -> None:
        """Keep what this field or header gives, too: the sooner of all counts. Raises InvalidField beyond the limit."""
        if not 0 < seconds <= self._limit:
            raise InvalidField(
                f"{param} must be greater than 0 and at most {self._limit} seconds (GENAI_REQUEST_TIMEOUT), "
                f"given {seconds:g}",
                param=param,
            )
        self._seconds = min(self._seconds, seconds)

    @property
    def seconds_left(self) -> float:
        """Seconds that are left now, not below 0."""
        return max(0.0, self._began + self._seconds - self._clock())


@dataclass(frozen=True)
class Caller:
    """One HTTP request that wants an answer: its name, its deadline, what its client sends next, and its account."""

    request_id: str
    deadline: Deadline
    receive: Receive
    account: Account

    async def waits_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives. Raises ClientLeft as soon as the client has gone, and ends the work."""
        return await while_there(self.receive, work)


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives.

    Raises ClientLeft as soon as `receive` says so, and ServerStopping when the server does not wait any longer; either
    ends the work.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    except asyncio.CancelledError:
        raise ServerStopping from None  # nothing else cancels what a client waits for
    finally:
        working.cancel()
        leaving.cancel()


async def caller(request: Request, services: TheServices) -> Caller:
    """The request's caller. Raises InvalidField for a header that is no time."""
    deadline = Deadline(services.settings.request_timeout, services.clock)
    given = request.headers.get(HEADER)
    if given is not None:
        try:
            seconds = float(given)
        except ValueError:
            raise InvalidField(f"{HEADER} must be a number of seconds, given {given[:100]!r}", param=HEADER) from None
        deadline.tighten(seconds, param=HEADER)
    return Caller(request.state.request_id, deadline, request.receive, request.state.account)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# What routes take as a parameter.
TheCaller = Annotated[Caller, Depends(caller)]
