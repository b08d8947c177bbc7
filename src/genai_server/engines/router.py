"""All engines of the server: which of them takes a request."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from genai_server.engines.client import EngineClient
from genai_server.errors import InvalidField, NoEngineReady, SessionTerminated
from genai_server.generation import ModelInfo


class Router:
    """The engines of one model, one for each configured device, in the order of the configuration."""

    def __init__(self, devices: Sequence[str], folder: Path) -> None:
        self.engines = {device: EngineClient(device, folder) for device in devices}

    @asynccontextmanager
    async def attached(self) -> AsyncIterator["Router"]:
        """Stay attached to the engines for as long as the block runs."""
        tasks = [asyncio.create_task(engine.run()) for engine in self.engines.values()]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_ready(self) -> bool:
        """Whether at least one engine can take work."""
        return any(engine.is_ready for engine in self.engines.values())

    def select(self, device: str | None) -> list[EngineClient]:
        """The engine of one device, or all. Raises InvalidField for a device that is not configured."""
        if device is None:
            return list(self.engines.values())
        if device not in self.engines:
            known = ", ".join(self.engines)
            raise InvalidField(f"device must be one of: {known}; given: {device!r}", param="device")
        return [self.engines[device]]

    def pick(self, device: str | None) -> tuple[EngineClient, ModelInfo]:
        """The engine that the request names, or the ready one with the least work, and its model.

        Raises InvalidField for an unknown device, SessionTerminated or NoEngineReady if none can take it.
        """
        engines = self.select(device)
        ready = [(engine, engine.model) for engine in engines if engine.is_ready and engine.model is not None]
        if ready:
            return min(ready, key=lambda pair: pair[0].work)
        if any(engine.load.terminated for engine in engines):
            raise SessionTerminated('terminate_session is "1"; an operator must set it to "0" first')
        raise NoEngineReady(f"no engine is ready on {device or 'any device'}")
