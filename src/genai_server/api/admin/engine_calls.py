"""Admin calls to several engines at once, and the request that an admin call names."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from genai_server.engine_client.admin import EngineAdmin
from genai_server.engine_client.client import EngineClient
from genai_server.errors import AmbiguousRequest, NoEngineReady, RequestNotFound
from genai_server.messages.admin import RequestState
from genai_server.quoted_values import quoted

T = TypeVar("T")

# Seconds that an engine may take to reply: longer than any forward pass should take.
_PATIENCE = 20.0
# Most characters of an unknown name, and most requests with an ambiguous one, that an error shows.
_MOST_SHOWN = 100
_MOST_TOLD = 20


async def ask(
    engines: Sequence[EngineClient], question: Callable[[EngineAdmin], Awaitable[T]]
) -> list[tuple[EngineClient, T]]:
    """The replies of all engines that run. Raises NoEngineReady if none runs, or if one does not reply."""
    running = [engine for engine in engines if engine.is_connected]
    if not running:
        raise NoEngineReady("no engine is running on " + ", ".join(engine.device for engine in engines))
    replies = await asyncio.gather(*(_answer(engine, question) for engine in running))
    return list(zip(running, replies, strict=True))


def by_device(replies: Sequence[tuple[EngineClient, T]], tell: Callable[[T], Any]) -> dict[str, Any]:
    """A response's body with each device's reply; of several models, `devices` are the first one's."""
    models: dict[str, dict[str, Any]] = {}
    for engine, reply in replies:
        models.setdefault(engine.model_name, {})[engine.device] = tell(reply)
    body: dict[str, Any] = {"devices": next(iter(models.values()))}
    if len(models) > 1:
        body["models"] = {name: {"devices": devices} for name, devices in models.items()}
    return body


async def find_request(engines: Sequence[EngineClient], name: str) -> RequestState:
    """The request with this unique id, or else with this id, which several requests may have.

    Raises RequestNotFound, AmbiguousRequest with the unique ids of all, and NoEngineReady.
    """
    present = [(engine, state) for engine, states in await ask(engines, EngineAdmin.requests) for state in states]
    found = {state.unique_id: (engine, state) for engine, state in present if state.unique_id == name}
    found = found or {state.unique_id: (engine, state) for engine, state in present if state.request_id == name}
    if not found:
        raise RequestNotFound(f"no request {quoted(name[:_MOST_SHOWN])} is running or waiting", param="request_id")
    if len(found) > 1:
        each = [f"{id} ({engine.device}, {state.phase}, {state.age:.1f} s)" for id, (engine, state) in found.items()]
        more = f" and {len(each) - _MOST_TOLD} more" if len(each) > _MOST_TOLD else ""
        raise AmbiguousRequest(
            f"{len(each)} requests are named {quoted(name)}: say which by its unique_id, "
            f"one of {', '.join(each[:_MOST_TOLD])}{more}",
            param="request_id",
        )
    ((_, state),) = found.values()
    return state


async def cancel_request(engines: Sequence[EngineClient], unique_id: str) -> bool:
    """End a request of any API process; returns whether an engine had it. Raises NoEngineReady."""

    async def cancel(admin: EngineAdmin) -> list[RequestState]:
        return await admin.cancel_request(unique_id)

    return any(states for _, states in await ask(engines, cancel))


async def _answer(engine: EngineClient, question: Callable[[EngineAdmin], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await question(engine.admin)
    except TimeoutError:
        raise NoEngineReady(f"the engine of device {engine.device} has not answered for {_PATIENCE:.0f} s") from None
