"""Calls that an API process makes to one engine on behalf of an operator, such as starting a profile session."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from genai_server.errors import NoEngineReady
from genai_server.messages.admin import AdminReply, Call, CallFailed, R


class EngineAdmin:
    """Sends calls (messages/admin.py) to one engine, and passes each reply to the coroutine that waits for it.

    Each EngineClient has an EngineAdmin. Used by the event loop's thread only.
    """

    def __init__(self, send: Callable[[Call[Any]], None]) -> None:
        # Raises NoEngineReady.
        self._send = send
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    async def ask(self, make_call: Callable[[int], Call[R]]) -> R:
        """Send the call that `make_call` creates, and return the engine's reply.

        `make_call` receives the number by which the reply is recognized. Raises the error in the engine's reply, and
        NoEngineReady if the engine is not running or ends before it has replied.
        """
        number = next(self._numbers)
        waiting: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._send(make_call(number))
        self._calls[number] = waiting
        return await waiting

    def receive(self, reply: AdminReply) -> None:
        """Pass a reply of the engine to the coroutine that waits for it. The reply is dropped if none is waiting."""
        waiting = self._calls.pop(reply.call, None)
        if waiting is None or waiting.done():
            return
        if isinstance(reply, CallFailed):
            waiting.set_exception(reply.error.to_error())
        else:
            waiting.set_result(reply)

    def lose(self, reason: str) -> None:
        """End all waiting calls with NoEngineReady, whose message is `reason`, because the connection to the engine has
        ended.
        """
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            if not waiting.done():
                waiting.set_exception(NoEngineReady(reason))
