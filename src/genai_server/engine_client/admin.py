"""The admin calls of an API process to one engine."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from genai_server.errors import NoEngineReady
from genai_server.generation import Adapter
from genai_server.messages.admin import (
    AdapterReply,
    AdminCall,
    AdminReply,
    CacheReset,
    CancelRequest,
    EndProfile,
    GetRuntimeOptions,
    ListProfiles,
    ListRequests,
    LoadAdapter,
    OpenProfiles,
    Reply,
    RequestList,
    RequestState,
    ResetPrefixCache,
    SetRuntimeOption,
    StartProfile,
    UnloadAdapter,
)
from genai_server.profile_plan import ProfilePlan, ProfileState


class EngineAdmin:
    """Makes admin calls and waits for their replies. Owned by the event loop.

    Each coroutine raises NoEngineReady if the engine is not running, or ends before it has replied.
    """

    def __init__(self, send: Callable[[AdminCall], None]) -> None:
        # Raises NoEngineReady.
        self._send = send
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    async def set_runtime_option(self, option: str, value: str, unique_id: str | None) -> Reply:
        """Set one of the runtime options, on all requests or on one."""
        reply: Reply = await self._ask(lambda call: SetRuntimeOption(call, option, value, unique_id))
        return reply

    async def runtime_options(self) -> Reply:
        """The state of the runtime options."""
        reply: Reply = await self._ask(GetRuntimeOptions)
        return reply

    async def start_profile(self, plan: ProfilePlan) -> ProfileState:
        """Begin a profile session. Also raises RequestNotFound, InvalidField and Unavailable."""
        (begun,) = _granted(await self._ask(lambda call: StartProfile(call, plan)))
        return begun

    async def end_profile(self, id: str) -> None:
        """End a profile session. Also raises ProfileNotFound."""
        _granted(await self._ask(lambda call: EndProfile(call, id)))

    async def profiles(self) -> list[ProfileState]:
        """The open profile sessions."""
        return _granted(await self._ask(ListProfiles))

    async def reset_prefix_cache(self) -> int:
        """Remove all cached prefixes; returns how many slots had one."""
        reset: CacheReset = await self._ask(ResetPrefixCache)
        return reset.slots

    async def requests(self) -> list[RequestState]:
        """The running and waiting requests of all API processes."""
        found: RequestList = await self._ask(ListRequests)
        return found.requests

    async def cancel_request(self, unique_id: str) -> list[RequestState]:
        """End a request of any API process; returns an entry for each of its answers."""
        found: RequestList = await self._ask(lambda call: CancelRequest(call, unique_id))
        return found.requests

    async def load_adapter(self, adapter: Adapter) -> None:
        """Load an adapter and try it. Also raises AdapterLoadFailed."""
        reply: AdapterReply = await self._ask(lambda call: LoadAdapter(call, adapter))
        if reply.error is not None:
            raise reply.error.to_error()

    async def unload_adapter(self, id: str) -> list[str]:
        """Refuse new requests with an adapter; returns the ids of the requests that still use it."""
        reply: AdapterReply = await self._ask(lambda call: UnloadAdapter(call, id))
        return reply.request_ids

    def receive(self, answer: AdminReply) -> None:
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

    async def _ask(self, question: Callable[[int], AdminCall]) -> Any:
        call = next(self._numbers)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(question(call))
        self._calls[call] = waiting
        return await waiting


def _granted(answer: OpenProfiles) -> list[ProfileState]:
    """The sessions in a reply. Raises the error with which the engine refused."""
    if answer.error is not None:
        raise answer.error.to_error()
    return answer.sessions
