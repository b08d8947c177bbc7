"""What an API process asks of one engine for operators, and has it change."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from genai_server.errors import NoEngineReady, from_code
from genai_server.generation import Adapter
from genai_server.messages.operator import (
    AdapterReply,
    Answer,
    CacheReset,
    CancelRequest,
    EndProfile,
    GetRuntimeOptions,
    ListProfiles,
    ListRequests,
    LoadAdapter,
    OpenProfiles,
    Question,
    Reply,
    RequestList,
    RequestState,
    ResetPrefixCache,
    SetRuntimeOption,
    StartProfile,
    UnloadAdapter,
)
from genai_server.profile_plan import ProfilePlan, ProfileState


class Operator:
    """Asks, and waits for the answers; belongs to the event loop.

    All that waits raises NoEngineReady if the engine is not there, as `send` does, or goes before it has answered.
    """

    def __init__(self, send: Callable[[Question], None]) -> None:
        self._send = send
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    async def set_runtime_option(self, option: str, value: str, request_id: str | None) -> Reply:
        """Set one of the runtime options, on all requests or on those of this name."""
        reply: Reply = await self._ask(lambda call: SetRuntimeOption(call, option, value, request_id))
        return reply

    async def runtime_options(self) -> Reply:
        """The state of the runtime options."""
        reply: Reply = await self._ask(GetRuntimeOptions)
        return reply

    async def start_profile(self, plan: ProfilePlan) -> ProfileState:
        """Begin a profile session. Raises RequestNotFound, InvalidField and Unavailable, too."""
        (begun,) = _granted(await self._ask(lambda call: StartProfile(call, plan)))
        return begun

    async def end_profile(self, id: str) -> None:
        """End a profile session. Raises ProfileNotFound, too."""
        _granted(await self._ask(lambda call: EndProfile(call, id)))

    async def profiles(self) -> list[ProfileState]:
        """The open profile sessions."""
        return _granted(await self._ask(ListProfiles))

    async def reset_prefix_cache(self) -> int:
        """Forget the past of all sequences that have ended; returns how many slots had one."""
        reset: CacheReset = await self._ask(ResetPrefixCache)
        return reset.slots

    async def requests(self) -> list[RequestState]:
        """What runs and waits, of all API processes."""
        found: RequestList = await self._ask(ListRequests)
        return found.requests

    async def cancel_request(self, request_id: str) -> list[RequestState]:
        """End the requests of this name, of all API processes; returns them."""
        found: RequestList = await self._ask(lambda call: CancelRequest(call, request_id))
        return found.requests

    async def load_adapter(self, adapter: Adapter) -> None:
        """Load an adapter and try it. Raises AdapterLoadFailed, too."""
        reply: AdapterReply = await self._ask(lambda call: LoadAdapter(call, adapter))
        if reply.refusal is not None:
            raise from_code(reply.refusal.code, reply.refusal.message, reply.refusal.param)

    async def unload_adapter(self, id: str) -> list[str]:
        """Take no more requests with an adapter; returns the names of those that have it."""
        reply: AdapterReply = await self._ask(lambda call: UnloadAdapter(call, id))
        return reply.request_ids

    def receive(self, answer: Answer) -> None:
        """The engine has answered; perhaps nobody waits for it any more."""
        waiting = self._calls.pop(answer.call, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def lose(self, reason: str) -> None:
        """The engine has gone: whoever waits gets NoEngineReady."""
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            if not waiting.done():
                waiting.set_exception(NoEngineReady(reason))

    async def _ask(self, question: Callable[[int], Question]) -> Any:
        call = next(self._numbers)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(question(call))
        self._calls[call] = waiting
        return await waiting


def _granted(answer: OpenProfiles) -> list[ProfileState]:
    """The sessions that an engine has answered with. Raises what it refused with."""
    if answer.refusal is not None:
        raise from_code(answer.refusal.code, answer.refusal.message, answer.refusal.param)
    return answer.sessions
