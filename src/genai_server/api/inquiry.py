"""A question to several engines at once, for the operator's endpoints."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from genai_server.engines.client import EngineClient
from genai_server.engines.operator import Operator
from genai_server.errors import NoEngineReady

T = TypeVar("T")

# How long an engine may take to answer, in seconds: longer than any forward pass should.
_PATIENCE = 20.0


async def ask(
    engines: Sequence[EngineClient], question: Callable[[Operator], Awaitable[T]]
) -> list[tuple[EngineClient, T]]:
    """The replies of the engines that run. Raises NoEngineReady if none does."""
    running = [engine for engine in engines if engine.is_connected]
    if not running:
        raise NoEngineReady("no engine is running on " + ", ".join(engine.device for engine in engines))
    replies = await asyncio.gather(*(_answer(engine, question) for engine in running))
    return list(zip(running, replies, strict=True))


def by_device(replies: Sequence[tuple[EngineClient, T]], tell: Callable[[T], Any]) -> dict[str, Any]:
    """A body with what to tell of each device; of several models `devices` are the first one's."""
    models: dict[str, dict[str, Any]] = {}
    for engine, reply in replies:
        models.setdefault(engine.model_name, {})[engine.device] = tell(reply)
    body: dict[str, Any] = {"devices": next(iter(models.values()))}
    if len(models) > 1:
        body["models"] = {name: {"devices": devices} for name, devices in models.items()}
    return body


async def _answer(engine: EngineClient, question: Callable[[Operator], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await question(engine.operator)
    except TimeoutError:
        raise NoEngineReady(f"the engine of device {engine.device} has not answered for {_PATIENCE:.0f} s") from None
