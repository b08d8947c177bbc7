"""The engines of one model, and the choice of one for a request."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from genai_server.engine_client.client import EngineClient
from genai_server.errors import InvalidField, NoEngineReady
from genai_server.messages.generation_request import ModelInfo
from genai_server.messages.status_file import EngineStatus, StatusFileReader
from genai_server.quoted_values import quoted


class Router:
    """The engines of one model by their devices, in the order of the settings."""

    def __init__(
        self, devices: Sequence[str], status_file: StatusFileReader, model_name: str = "", serial: int = 0
    ) -> None:
        self.engines = {device: EngineClient(device, status_file, model_name, serial) for device in devices}

    @asynccontextmanager
    async def attached(self) -> AsyncIterator["Router"]:
        """Stay connected to the engines while the block runs."""
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
            raise InvalidField(f"device must be one of: {known}; given: {quoted(device)}", param="device")
        return [self.engines[device]]

    def pick(self, device: str | None) -> tuple[EngineClient, ModelInfo]:
        """The engine that the request names, or the one with the least work, and its model.

        A terminated or full engine comes last but can be chosen: only the engine itself knows whether it still is.
        Raises InvalidField for an unknown device, and NoEngineReady if no engine runs.
        """
        engines = self.select(device)
        running = [(engine, engine.model) for engine in engines if engine.is_connected and engine.model is not None]
        if running:
            return min(running, key=lambda pair: (pair[0].load.terminated, pair[0].load.num_free == 0, pair[0].work))
        states = "; ".join(f"{engine.device} is {describe(engine.status())}" for engine in engines)
        raise NoEngineReady(f"no engine can take work: {states}")


def describe(status: EngineStatus) -> str:
    """A state in words, with its reason if it has one."""
    return f"{status.state} ({status.error})" if status.error else status.state
