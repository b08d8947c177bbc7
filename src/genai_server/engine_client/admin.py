"""The admin calls of an API process to one engine."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from genai_server.errors import NoEngineReady
from genai_server.messages.admin import AdminReply, Call, CallFailed, R


class EngineAdmin:
    """Makes the calls of `messages/admin.py` and waits for their replies. Used by the event loop's thread only."""

    def __init__(self, send: Callable[[Call[Any]], None]) -> None:
        # Raises NoEngineReady.
        self._send = send
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    async def ask(self, make_call: Callable[[int], Call[R]]) -> R:
        """Make a call, which `make_call` creates with its number, and wait for the reply.

        Raises the error in the engine's reply, and NoEngineReady if the engine is not running or ends before it has
        replied.
        """
        number = next(self._numbers)
        waiting: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._send(make_call(number))
        self._calls[number] = waiting
        return await waiting

    def receive(self, reply: AdminReply) -> None:
        """Pass a reply of the engine to its caller, unless the caller has stopped waiting."""
        waiting = self._calls.pop(reply.call, None)
        if waiting is None or waiting.done():
            return
        if isinstance(reply, CallFailed):
            waiting.set_exception(reply.error.to_error())
        else:
            waiting.set_result(reply)

    def lose(self, reason: str) -> None:
        """Handle the loss of the engine: all waiting calls raise NoEngineReady."""
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            if not waiting.done():
                waiting.set_exception(NoEngineReady(reason))
