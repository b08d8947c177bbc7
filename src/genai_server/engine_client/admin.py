"""The admin calls of an API process to one engine."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from genai_server.errors import NoEngineReady
from genai_server.messages import admin
from genai_server.messages.generation_request import Adapter
from genai_server.profile_plan import ProfilePlan, ProfileState


class EngineAdmin:
    """Makes admin calls and waits for their replies. Owned by the event loop.

    Each coroutine raises NoEngineReady if the engine is not running, or ends before it has replied.
    """

    def __init__(self, send: Callable[[admin.AdminCall], None]) -> None:
        # Raises NoEngineReady.
        self._send = send
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    async def set_runtime_option(self, option: str, value: str, unique_id: str | None) -> admin.Reply:
        """Set one of the runtime options, on all requests or on one."""
        reply: admin.Reply = await self._ask(lambda call: admin.SetRuntimeOption(call, option, value, unique_id))
        return reply

    async def runtime_options(self) -> admin.Reply:
        """The state of the runtime options."""
        reply: admin.Reply = await self._ask(admin.GetRuntimeOptions)
        return reply

    async def start_profile(self, plan: ProfilePlan) -> ProfileState:
        """Begin a profile session. Also raises RequestNotFound, InvalidField and Unavailable."""
        (begun,) = _sessions_of(await self._ask(lambda call: admin.StartProfile(call, plan)))
        return begun

    async def end_profile(self, id: str) -> None:
        """End a profile session. Also raises ProfileNotFound."""
        _sessions_of(await self._ask(lambda call: admin.EndProfile(call, id)))

    async def profiles(self) -> list[ProfileState]:
        """The open profile sessions."""
        return _sessions_of(await self._ask(admin.ListProfiles))

    async def reset_prefix_cache(self) -> int:
        """Remove all cached prefixes; returns how many slots had one."""
        reset: admin.CacheReset = await self._ask(admin.ResetPrefixCache)
        return reset.slots

    async def requests(self) -> list[admin.RequestState]:
        """The running and waiting requests of all API processes."""
        found: admin.RequestList = await self._ask(admin.ListRequests)
        return found.requests

    async def cancel_request(self, unique_id: str) -> list[admin.RequestState]:
        """End a request of any API process; returns an entry for each of its answers."""
        found: admin.RequestList = await self._ask(lambda call: admin.CancelRequest(call, unique_id))
        return found.requests

    async def load_adapter(self, adapter: Adapter) -> None:
        """Load an adapter and try it. Also raises AdapterLoadFailed."""
        reply: admin.AdapterReply = await self._ask(lambda call: admin.LoadAdapter(call, adapter))
        if reply.error is not None:
            raise reply.error.to_error()

    async def unload_adapter(self, id: str) -> list[str]:
        """Refuse new requests with an adapter; returns the ids of the requests that still use it."""
        reply: admin.AdapterReply = await self._ask(lambda call: admin.UnloadAdapter(call, id))
        return reply.request_ids

    def receive(self, answer: admin.AdminReply) -> None:
        """Pass a reply of the engine to its caller, unless that has left."""
        waiting = self._calls.pop(answer.call, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def lose(self, reason: str) -> None:
        """The engine has gone: all waiting calls raise NoEngineReady."""
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            if not waiting.done():
                waiting.set_exception(NoEngineReady(reason))

    async def _ask(self, question: Callable[[int], admin.AdminCall]) -> Any:
        call = next(self._numbers)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(question(call))
        self._calls[call] = waiting
        return await waiting


def _sessions_of(answer: admin.OpenProfiles) -> list[ProfileState]:
    """The sessions in a reply. Raises the error with which the engine refused."""
    if answer.error is not None:
        raise answer.error.to_error()
    return answer.sessions
