"""The models of the server as this API process knows them: it follows the board, on which they come and go."""

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
from genai_server.engines.board import BoardReader, EngineStatus, ModelStatus
from genai_server.engines.client import EngineClient
from genai_server.engines.control import Command, WantModel, send_command
from genai_server.errors import ModelNotFound, ModelsBusy, NoEngineReady, QueueFull
from genai_server.generation import Adapter

log = logging.getLogger(__name__)
_LOOK_EVERY = 0.1
_WISH_EVERY = 1.0
# Seconds that a request waits for another model to make room.
PATIENCE = 30.0


@dataclass(frozen=True)
class Choice:
    """What a request has chosen: a model, perhaps with one of its adapters."""

    about: ModelStatus
    adapter: Adapter | None = None

    @property
    def id(self) -> str:
        """Its name in answers, whatever it was called."""
        return self.about.name if self.adapter is None else f"{self.about.name}:{self.adapter.name}"


class Catalog:
    """Knows all models, and serves those that are loaded; belongs to the event loop.

    At most `most_waiting` requests wait for a model that is being loaded for them.
    """

    def __init__(self, folder: Path, load_text: LoadText, most_waiting: int) -> None:
        self.load_text = load_text
        self._folder = folder
        self._reader = BoardReader(folder)
        self._served: dict[int, ServedModel] = {}  # by serial
        self._leaving: set[asyncio.Task[None]] = set()
        self._most_waiting = most_waiting
        self._waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator["Catalog"]:
        """Follow the board for as long as the block runs, from the point where all text sides are read."""
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
        board = self._reader.read()
        loaded = {about.serial: about for about in board.models if about.state != "unloaded"}
        for serial in self._served.keys() - loaded.keys():
            task = asyncio.create_task(self._served.pop(serial).leave())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for serial in loaded.keys() - self._served.keys():
            self._served[serial] = ServedModel(loaded[serial], self._folder, self.load_text)
        return board.models

    def engine_statuses(self, about: ModelStatus) -> list[EngineStatus]:
        """What the supervisor says of a model's engines, those of one that is not loaded included."""
        served = self._served.get(about.serial)
        if served is None:
            return [EngineStatus(device, about.state, model=about.name) for device in about.devices]
        return [engine.status() for engine in served.router.engines.values()]

    def attached_engines(self) -> list[EngineClient]:
        """The engines of all models that this process serves now, the board unread; any thread may ask."""
        return [engine for served in list(self._served.values()) for engine in served.router.engines.values()]

    def served(self, about: ModelStatus) -> ServedModel | None:
        """A model if it is loaded, or being loaded or unloaded."""
        return self._served.get(about.serial)

    def find(self, name: str | None) -> ModelStatus:
        """The model of this name or alias, the first without one. Raises ModelNotFound."""
        models = [about for about in self.statuses() if not about.leaving]
        for about in models:
            if name is None or name == about.name or name in about.aliases:
                return about
        if not models:
            raise ModelNotFound("no model is served now", param="model")
        names = ", ".join(repr(about.name) for about in models)
        shown = "the model" if name is None else f"model {name[:100]!r}"
        raise ModelNotFound(f"{shown} is not served; {names} {'is' if len(models) == 1 else 'are'}", param="model")

    def choose(self, id: str | None) -> Choice:
        """The model of this name or alias, or after it and a colon one of its adapters. Raises ModelNotFound."""
        name, colon, adapter = (id or "").partition(":")
        if not colon or not any(name in (about.name, *about.aliases) for about in self.statuses()):
            return Choice(self.find(id))
        about = self.find(name)
        for known in about.adapters:
            if known.name == adapter:
                return Choice(about, known)
        names = ", ".join(repr(known.name) for known in about.adapters) or "none"
        raise ModelNotFound(
            f"model {about.name!r} has no adapter {adapter[:100]!r}; its adapters: {names}", param="model"
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

    async def serving(self, id: str | None, seconds: float) -> ServedModel:
        """The model of this name, or that the adapter of this id is of; one that is loaded on demand is, and within
        these seconds.

        Raises ModelNotFound, QueueFull, and NoEngineReady or ModelsBusy if it is not there in time.
        """
        about = self.choose(id).about
        served = self.served(about)
        is_expected = about.on_demand and about.state != "failed"
        if served is not None and about.state != "unloading" and (served.takes_work or not is_expected):
            return served
        with self._place(about.name):
            return await self.loaded(about.name, seconds)

    async def loaded(self, name: str, seconds: float) -> ServedModel:
        """Wish for the model of this name until it is loaded, or has failed to.

        Raises ModelsBusy if no other makes room for it, NoEngineReady after so many seconds, and ModelNotFound if it is
        unloaded meanwhile.
        """
        began = time.monotonic()
        wished = began - _WISH_EVERY
        while True:
            about = self.find(name)
            served = self.served(about)
            has_failed = about.state == "failed" or (served is not None and served.error is not None)
            if served is not None and (has_failed or (about.state == "ready" and served.takes_work)):
                return served
            now = time.monotonic()
            if about.state == "unloaded" and now - began >= PATIENCE:
                raise ModelsBusy(f"no loaded model was idle for {PATIENCE:g} s (GENAI_MAX_MODELS)", retry_after=5)
            if now - began >= seconds:
                raise NoEngineReady(f"model {name} is still {about.state}")
            if about.state in ("unloaded", "unloading") and now - wished >= _WISH_EVERY:
                wished = now
                await self.command(WantModel(name))
            await asyncio.sleep(_LOOK_EVERY / 2)

    async def gone(self, about: ModelStatus) -> None:
        """Wait until a model is unloaded for good, and its memory free."""
        while True:
            if all(other.serial != about.serial for other in self.statuses()):
                return
            await asyncio.sleep(_LOOK_EVERY / 2)

    async def command(self, command: Command) -> None:
        """Have the supervisor obey. Raises what it says against it."""
        await asyncio.to_thread(send_command, self._folder, command)

    @contextlib.contextmanager
    def _place(self, name: str) -> Iterator[None]:
        """One of the places of those who wait. Raises QueueFull."""
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
            except Exception:  # whatever it was, the next look may succeed
                log.exception("looking at the board")
            await asyncio.sleep(_LOOK_EVERY)
