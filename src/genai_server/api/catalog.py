"""The models of the server as this API process knows them, from the status file of the supervisor."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from genai_server.api.served_model import LoadText, ServedModel
from genai_server.engine_client.client import EngineClient
from genai_server.engine_client.commands import send_command
from genai_server.errors import ModelNotFound, ModelsBusy, NoEngineReady, QueueFull
from genai_server.generation import Adapter
from genai_server.messages.commands import Command, WantModel
from genai_server.messages.status_file import EngineState, EngineStatus, ModelState, ModelStatus, StatusFileReader
from genai_server.quoted import quoted

log = logging.getLogger(__name__)
# Seconds between two reads of the status file, and between two requests to load a model.
_LOOK_EVERY = 0.1
_ASK_EVERY = 1.0
# Seconds that a request waits until another model is idle and can be unloaded.
PATIENCE = 30.0


@dataclass(frozen=True)
class ChosenModel:
    """The model that a request has chosen."""

    # Its status when it was chosen.
    about: ModelStatus
    # The one of its adapters that the request names, if it names one.
    adapter: Adapter | None = None

    @property
    def id(self) -> str:
        """The name in answers, whichever of its names the request used."""
        return self.about.name if self.adapter is None else f"{self.about.name}:{self.adapter.name}"


class Catalog:
    """Knows all models, and serves those that are loaded. Owned by the event loop.

    At most `most_waiting` requests wait for each model that is being loaded.
    """

    def __init__(self, folder: Path, load_text: LoadText, most_waiting: int) -> None:
        self.load_text = load_text
        self._status_file = StatusFileReader(folder)
        self._served: dict[int, ServedModel] = {}  # by serial
        self._leaving: set[asyncio.Task[None]] = set()
        self._most_waiting = most_waiting
        self._waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator["Catalog"]:
        """Follow the status file while the block runs, which begins once all text sides are read."""
        self.statuses()
        for model in list(self._served.values()):
            await model.read()
        following = asyncio.create_task(self._follow())
        try:
            yield self
        finally:
            following.cancel()
            models = list(self._served.values())
            await asyncio.gather(following, *(model.leave() for model in models), return_exceptions=True)
            for model in models:
                model.close()

    def statuses(self) -> list[ModelStatus]:
        """All models now, the one for requests that name none first; ready are those that this process can serve."""
        server_status = self._status_file.read()
        loaded = {about.serial: about for about in server_status.models if about.state != ModelState.UNLOADED}
        for serial in self._served.keys() - loaded.keys():
            task = asyncio.create_task(self._served.pop(serial).leave())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for serial in loaded.keys() - self._served.keys():
            self._served[serial] = ServedModel(loaded[serial], self._status_file, self.load_text)
        return server_status.models

    def engine_statuses(self, about: ModelStatus) -> list[EngineStatus]:
        """The status of each engine of a model, also if it is not loaded."""
        served = self._served.get(about.serial)
        if served is None:
            return [EngineStatus(device, EngineState.UNLOADED, model=about.name) for device in about.devices]
        return [engine.status() for engine in served.router.engines.values()]

    def attached_engines(self) -> list[EngineClient]:
        """The engines of all models that this process serves now, without reading the status file. Thread-safe."""
        return [engine for served in list(self._served.values()) for engine in served.router.engines.values()]

    def served(self, about: ModelStatus) -> ServedModel | None:
        """The model's engines and text side; None unless it is loaded, being loaded or being unloaded."""
        return self._served.get(about.serial)

    def find(self, name: str | None) -> ModelStatus:
        """The model of this name or alias; the first without a name. Raises ModelNotFound."""
        models = [about for about in self.statuses() if not about.leaving]
        for about in models:
            if name is None or name == about.name or name in about.aliases:
                return about
        if not models:
            raise ModelNotFound("no model is served now", param="model")
        names = ", ".join(quoted(about.name) for about in models)
        shown = "the model" if name is None else f"model {quoted(name)}"
        raise ModelNotFound(f"{shown} is not served; {names} {'is' if len(models) == 1 else 'are'}", param="model")

    def choose(self, id: str | None) -> ChosenModel:
        """The model of an id: NAME or ALIAS, either with :ADAPTER. Raises ModelNotFound."""
        name, colon, adapter = (id or "").partition(":")
        if not colon or not any(name in (about.name, *about.aliases) for about in self.statuses()):
            return ChosenModel(self.find(id))
        about = self.find(name)
        for known in about.adapters:
            if known.name == adapter:
                return ChosenModel(about, known)
        names = ", ".join(quoted(known.name) for known in about.adapters) or "none"
        raise ModelNotFound(
            f"model {quoted(about.name)} has no adapter {quoted(adapter)}; its adapters: {names}", param="model"
        )

    def engines(self, model: str | None = None, device: str | None = None) -> list[EngineClient]:
        """The engines of all loaded models, or of one, on all devices, or on one.

        Raises ModelNotFound, InvalidField for a device that no such model is on, and NoEngineReady without a model.
        """
        chosen = self.statuses() if model is None else [self.find(model)]
        loaded = [served for about in chosen if (served := self.served(about)) is not None]
        if not loaded:
            raise NoEngineReady("no model is loaded" if model is None else f"model {model} is not loaded")
        having = [served for served in loaded if device is None or device in served.devices]
        return [engine for served in having or loaded for engine in served.router.select(device)]

    async def serving(self, chosen: ChosenModel, seconds: float) -> tuple[ChosenModel, ServedModel]:
        """A chosen model once it is served: one that is loaded on demand is loaded, within these seconds.

        Where that took waiting the choice is made anew, for its adapter may have been unloaded. Raises QueueFull,
        NoEngineReady or ModelsBusy if it is not there in time, and ModelNotFound if it is gone meanwhile.
        """
        about = chosen.about
        served = self.served(about)
        is_expected = about.on_demand and about.state != ModelState.FAILED
        if served is not None and about.state != ModelState.UNLOADING and (served.takes_work or not is_expected):
            return chosen, served
        with self._waiting_for(about.name):
            served = await self.loaded(about.name, seconds)
        return self.choose(chosen.id), served

    async def loaded(self, name: str, seconds: float) -> ServedModel:
        """Ask the supervisor for the model of this name until it is loaded, or has failed to load.

        Raises ModelsBusy if no other model can be unloaded for it, NoEngineReady after `seconds`, and ModelNotFound if
        it is removed meanwhile.
        """
        began = time.monotonic()
        asked = began - _ASK_EVERY
        while True:
            about = self.find(name)
            served = self.served(about)
            has_failed = about.state == ModelState.FAILED or (served is not None and served.error is not None)
            if served is not None and (has_failed or (about.state == ModelState.READY and served.takes_work)):
                return served
            now = time.monotonic()
            if about.state == ModelState.UNLOADED and now - began >= PATIENCE:
                raise ModelsBusy(f"no loaded model was idle for {PATIENCE:g} s (GENAI_MAX_MODELS)", retry_after=5)
            if now - began >= seconds:
                raise NoEngineReady(f"model {name} is still {about.state}")
            if about.state in (ModelState.UNLOADED, ModelState.UNLOADING) and now - asked >= _ASK_EVERY:
                asked = now
                await self.command(WantModel(name))
            await asyncio.sleep(_LOOK_EVERY / 2)

    async def gone(self, about: ModelStatus) -> None:
        """Wait until a model is removed and its memory is free."""
        while True:
            if all(other.serial != about.serial for other in self.statuses()):
                return
            await asyncio.sleep(_LOOK_EVERY / 2)

    async def command(self, command: Command) -> None:
        """Have the supervisor obey. Raises what it says against it."""
        await asyncio.to_thread(send_command, self._status_file.read(), command)

    @contextlib.contextmanager
    def _waiting_for(self, name: str) -> Iterator[None]:
        """Count a request that waits for a model while the block runs. Raises QueueFull."""
        if self._waiting[name] >= self._most_waiting:
            raise QueueFull(f"{self._most_waiting} requests wait for model {name} to be loaded (GENAI_MAX_QUEUE)")
        self._waiting[name] += 1
        try:
            yield
        finally:
            self._waiting[name] -= 1

    async def _follow(self) -> None:
        while True:
            try:
                self.statuses()
            except Exception:  # whatever it was, the next read may succeed
                log.exception("reading the status file")
            await asyncio.sleep(_LOOK_EVERY)
