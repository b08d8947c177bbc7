"""A question to several engines at once, for the operator's endpoints."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from genai_server.engines.client import EngineClient
from genai_server.errors import NoEngineReady

T = TypeVar("T")

# How long an engine may take to answer, in seconds: longer than any forward pass should.
_PATIENCE = 20.0


async def ask(engines: Sequence[EngineClient], question: Callable[[EngineClient], Awaitable[T]]) -> dict[str, T]:
    """The replies of the engines that run, by device. Raises NoEngineReady if none does."""
    running = [engine for engine in engines if engine.is_connected]
    if not running:
        raise NoEngineReady("no engine is running on " + ", ".join(engine.device for engine in engines))
    replies = await asyncio.gather(*(_answer(engine, question) for engine in running))
    return {engine.device: reply for engine, reply in zip(running, replies, strict=True)}


async def _answer(engine: EngineClient, question: Callable[[EngineClient], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await question(engine)
    except TimeoutError:
        raise NoEngineReady(f"the engine of device {engine.device} has not answered for {_PATIENCE:.0f} s") from None
