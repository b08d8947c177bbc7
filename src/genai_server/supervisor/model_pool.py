"""All models of a server: decides which are loaded, and which is unloaded to make space for another."""

import math
from collections.abc import Iterator

from genai_server.errors import InvalidField, ModelNotFound
from genai_server.messages.generation_request import Adapter
from genai_server.messages.status_file import ModelState, ModelStatus
from genai_server.quoted_values import quoted
from genai_server.supervisor.managed_model import ManagedModel

# Seconds after which a request's demand for a model expires, unless it is repeated.
WANT_SECONDS = 3.0


class ModelPool:
    """The models by name; the first is for requests that name none.

    At most `max_loaded` models are loaded at once (0: no limit). Models idle for `idle_unload` seconds are unloaded
    (0: never). Times are seconds of one clock. Guarded by the supervisor's lock.
    """

    def __init__(self, max_loaded: int, idle_unload: float) -> None:
        self._max_loaded = max_loaded
        self._idle_unload = idle_unload or None
        self._models: dict[str, ManagedModel] = {}
        self._wanted: dict[str, float] = {}

    def __iter__(self) -> Iterator[ManagedModel]:
        return iter(list(self._models.values()))

    def statuses(self) -> list[ModelStatus]:
        """The models' part of the status file."""
        return [model.status() for model in self]

    def find(self, name: str, *, param: str = "name") -> ManagedModel:
        """The model of this name or alias. Raises ModelNotFound."""
        found = self._models.get(name) or next((model for model in self if name in model.about.aliases), None)
        if found is None or found.about.leaving:
            known = ", ".join(self._models) or "none"
            raise ModelNotFound(f"no model {quoted(name)} is served; known models: {known}", param=param)
        return found

    def add(self, model: ManagedModel) -> None:
        """Add a model that is not loaded yet, or replace one that is not loaded. Raises InvalidField."""
        name = model.about.name
        before = self._models.get(name)
        if before is not None and before.state not in (ModelState.FAILED, ModelState.UNLOADED):
            raise InvalidField(f"name {quoted(name)} is {before.state}; unload it first", param="name")
        if any(name in other.about.aliases for other in self):
            raise InvalidField(f"name {quoted(name)} is an alias", param="name")
        if before is not None:
            model.change(aliases=before.about.aliases)
            if before.about.path == model.about.path:
                model.change(adapters=before.about.adapters)
        model.change(idle_unload=self._idle_unload)
        self._models[name] = model

    def set_alias(self, alias: str, name: str | None) -> None:
        """Give a model another name; None removes that name. Raises ModelNotFound and InvalidField."""
        if alias in self._models:
            raise InvalidField(f"alias {quoted(alias)} is the name of a model", param="alias")
        target = None if name is None else self.find(name)
        if target is None and not any(alias in model.about.aliases for model in self):
            raise ModelNotFound(f"there is no alias {quoted(alias)}", param="alias")
        for model in self:
            others = [other for other in model.about.aliases if other != alias]
            model.change(aliases=[*others, alias] if model is target else others)

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Let requests choose an adapter of a model. Raises ModelNotFound and InvalidField."""
        model = self.find(name, param="model")
        if any(other.name == adapter.name for other in model.about.adapters):
            raise InvalidField(
                f"name {quoted(adapter.name)} is an adapter of model {quoted(model.about.name)}; unload it first",
                param="name",
            )
        model.change(adapters=[*model.about.adapters, adapter])

    def remove_adapter(self, name: str, id: str) -> None:
        """Stop offering the adapter of this id. Raises ModelNotFound."""
        model = self.find(name, param="model")
        model.change(adapters=[adapter for adapter in model.about.adapters if adapter.id != id])

    def keep(self, name: str, seconds: float | None) -> None:
        """Unload a loaded model once it has been idle for `seconds`; None for never. Holds until it is unloaded.

        Raises ModelNotFound.
        """
        model = self.find(name)
        if model.takes_memory:
            model.change(idle_unload=seconds)

    def request_load(self, name: str, now: float) -> None:
        """Note that a request waits for a model. Raises ModelNotFound."""
        self._wanted[self.find(name).about.name] = now

    def unload(self, name: str, until: float, now: float) -> None:
        """Stop serving a model; its running requests may continue until the given time. Raises ModelNotFound."""
        model = self.find(name)
        model.change(leaving=True)
        model.unload(until)
        model.unload_began(now)

    def update(self, now: float) -> list[ManagedModel]:
        """Decide which models are loaded. Returns those whose processes the caller must end and report to `ended`."""
        for model in self:
            model.look(now)
        for model in self:
            seconds = model.about.idle_unload
            if seconds is not None and model.is_idle(now, seconds):
                self._evict(model, now)
        self._make_room(now)
        return [model for model in self if model.may_end(now)]

    def ended(self, model: ManagedModel) -> None:
        """Note that a model's processes, and their memory, are gone."""
        model.ended()
        model.change(idle_unload=self._idle_unload)
        if model.about.leaving:
            self._models.pop(model.about.name)
            self._wanted.pop(model.about.name, None)

    def _make_room(self, now: float) -> None:
        """Load the wanted models that fit, and begin to unload idle ones for the others."""
        self._wanted = {name: at for name, at in self._wanted.items() if now - at < WANT_SECONDS}
        waiting = [self._models[name] for name in self._wanted if name in self._models]
        waiting = [model for model in waiting if model.state == ModelState.UNLOADED]
        free = self._max_loaded - sum(model.takes_memory for model in self) if self._max_loaded else math.inf
        coming = sum(model.state == ModelState.UNLOADING for model in self)
        for model in waiting:
            if free > 0:
                free -= 1
                model.load(now)
            elif coming > 0:
                coming -= 1
            else:
                idle = [model for model in self if model.is_idle(now)]
                if not idle:
                    return
                self._evict(min(idle, key=lambda model: model.last_used), now)

    @staticmethod
    def _evict(model: ManagedModel, now: float) -> None:
        model.change(on_demand=True)
        model.unload(math.inf)
        model.unload_began(now)
