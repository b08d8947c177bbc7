"""The models of a server (`ModelPool`, `ManagedModel`), and the decision which of them are loaded and which are
unloaded to make space.

An idle model is unloaded when requests wait for another model and there is no space. If all models are in use, they
take turns: the model that has been loaded longest is unloaded after TURN_SECONDS, if the requests have waited that
long.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from genai_server.errors import InvalidField, ModelNotFound, in_one_line, quoted
from genai_server.messages.generation_request import Adapter
from genai_server.messages.server_status import EngineState, EngineStatus, ModelState, ModelStatus
from genai_server.model_files.pooling_model import task_of
from genai_server.model_files.speech_and_vision import medium_of
from genai_server.supervisor.engine_process import EngineWatch
from genai_server.supervisor.kv_cache_size import Decision, MemoryBudget, Shortage

log = logging.getLogger(__name__)
# Seconds without requests before an unloading model ends, because an API process may have sent one before it read the
# new status. A newly loaded model waits as long for the request that caused it.
SETTLED = 1.0
# Seconds after which a request's demand for a model expires, unless it is repeated.
WANT_SECONDS = 3.0
# Seconds that a model in use stays loaded although requests wait for another one, and that these wait at least.
TURN_SECONDS = 15.0

CreateEngines = Callable[[ModelStatus], Sequence[EngineWatch]]


class ManagedModel:
    """One model that the supervisor manages, with its engines while it is loaded. It is unloaded at first;
    `create_engines` begins to load it, `unload` and then `end` and `ended` unload it.

    All times, including `now`, are seconds of one clock. The caller holds the supervisor's lock, except for `end`,
    which waits for processes.
    """

    def __init__(self, status: ModelStatus, create: CreateEngines, now: float) -> None:
        self.about = status
        self.engines: Sequence[EngineWatch] = ()
        self.last_used = now
        # Since when it has been ready without a break; infinite while it is not.
        self.ready_since = math.inf
        self._create = create
        self._counts: list[tuple[int, int]] = []
        self._unloading_until: float | None = None
        # Why its engines could not be created; "" if they could, or were not needed yet.
        self._failed = ""

    @property
    def state(self) -> ModelState:
        """The current state of the model, derived from its engines: unloaded, loading, ready, unloading or failed."""
        if self._unloading_until is not None:
            return ModelState.UNLOADING
        if not self.engines:
            return ModelState.FAILED if self._failed else ModelState.UNLOADED
        states = {engine.status.state for engine in self.engines}
        if EngineState.READY in states:
            return ModelState.READY
        return ModelState.FAILED if states == {EngineState.FAILED} else ModelState.LOADING

    @property
    def takes_memory(self) -> bool:
        """Whether the model's engine processes hold it in memory, or will do so soon: it is loading, ready or
        unloading.
        """
        return self.state in (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING)

    @property
    def num_requests(self) -> int:
        """The number of running and waiting requests of the model at the last call of `update_use`."""
        return sum(requests for requests, _ in self._counts)

    def status(self) -> ModelStatus:
        """Return the model's description and current state, as API processes receive them."""
        return msgspec.structs.replace(self.about, state=self.state)

    def engine_statuses(self) -> list[EngineStatus]:
        """Return the status of each of the model's engines, as API processes receive it. If the engines could not be
        created, each device has the status FAILED with the error.
        """
        model_status, statuses = self.about, [engine.status for engine in self.engines]
        if not statuses and self._failed:
            statuses = [
                EngineStatus(
                    device, EngineState.FAILED, error=self._failed, model=model_status.name, serial=model_status.serial
                )
                for device in model_status.devices
            ]
        if self._unloading_until is None:
            return statuses
        return [msgspec.structs.replace(status, state=EngineState.UNLOADING) for status in statuses]

    def change(self, **changes: object) -> None:
        """Replace the given fields of the model's status, such as `adapters` or `idle_unload`."""
        self.about = msgspec.structs.replace(self.about, **changes)

    def create_engines(self, now: float) -> None:
        """Create an engine for each of the model's devices, without starting any. If that fails, the error is logged
        and the model's state becomes FAILED. `now` counts as the time of the model's last use.
        """
        self.last_used = now
        self.change(shortage="", is_too_large=False)
        try:
            self.engines = self._create(self.about)
        except Exception as error:
            log.exception("loading model %s", self.about.name)
            self._failed = in_one_line(error)

    def update_use(self, now: float) -> None:
        """Update the model's number of requests and the time of its last use from the newest heartbeats of its engines.
        To be called at regular intervals; `now` is the current time.
        """
        beats = [engine.beat() for engine in self.engines]
        counts = [(beat.requests, beat.arrived) for beat in beats]
        if counts != self._counts or self.num_requests or self.state == ModelState.LOADING:
            self.last_used = now
        self._counts = counts
        self.ready_since = min(self.ready_since, now) if self.state == ModelState.READY else math.inf

    def has_had_turn(self, now: float) -> bool:
        """Return whether the model has been ready for at least TURN_SECONDS, so that it may be unloaded for another
        model although it is in use.
        """
        return self.state == ModelState.READY and now - self.ready_since >= TURN_SECONDS

    def is_idle(self, now: float, seconds: float = SETTLED) -> bool:
        """Return whether the model is ready and has had no request for `seconds` seconds, or for SETTLED seconds if
        that is longer.
        """
        return self.state == ModelState.READY and now - self.last_used >= max(seconds, SETTLED)

    def unload(self, until: float, now: float) -> None:
        """Begin to unload the model: from now on it accepts no new requests. Its processes are ended later, when
        `may_end` says so.

        Running requests may continue until the time `until`, or until an earlier time that a previous call has set.
        """
        self._unloading_until = until if self._unloading_until is None else min(until, self._unloading_until)
        # The last requests may still arrive.
        self.last_used = max(self.last_used, now)

    def may_end(self, now: float) -> bool:
        """Return whether the model's processes may be ended now: the model is being unloaded, and no requests are left
        or their time is over.
        """
        if self._unloading_until is None:
            return False
        return now >= self._unloading_until or (not self.num_requests and now - self.last_used >= SETTLED)

    def end(self) -> None:
        """End the model's engine processes. Blocks until they have ended and their memory is free. `ended` must be
        called afterwards.
        """
        for engine in self.engines:
            engine.unload()

    def ended(self) -> None:
        """Forget the engine processes, which have ended, and their counts of requests. The model's state is then
        unloaded.
        """
        self.engines, self._counts, self._unloading_until = (), [], None


@dataclass
class _Demand:
    """Since when requests have been waiting for a model that is not loaded: the time at which the first of them began
    to wait, and the latest time at which a request was still waiting. After TURN_SECONDS from the first, models in use
    may be unloaded for it; WANT_SECONDS after the last, it is forgotten.
    """

    # When the first one came.
    first: float
    # When one was there last.
    last: float


def new_status(name: str, path: str, devices: Sequence[str], serial: int, *, on_demand: bool = False) -> ModelStatus:
    """Return the status of a model that is not loaded yet. The model's task is read from its directory `path`;
    `devices` are those that each get an engine. `serial` distinguishes models with the same name. `on_demand` says that
    the model is loaded when a request needs it.
    """
    return ModelStatus(
        name,
        path,
        list(devices),
        serial,
        ModelState.UNLOADED,
        int(time.time()),
        on_demand=on_demand,
        task=task_of(Path(path)),
        medium=medium_of(Path(path)),
    )


class ModelPool:
    """The models of a server by name, and the decision which of them are loaded. The supervisor has one, and calls
    `update` at regular intervals. The first model serves requests that name none.

    At most `max_loaded` models are loaded at once (0: no limit; "auto": as many as fit into memory). Models that are
    idle for `idle_unload` seconds are unloaded (0: never). When a model that is in use must make space for another, its
    running answers may continue for `drain` seconds. All times, including `now`, are seconds of one clock. The caller
    holds the supervisor's lock.
    """

    def __init__(
        self, max_loaded: int | str, idle_unload: float, budget: MemoryBudget, *, drain: float = math.inf
    ) -> None:
        self._by_memory = isinstance(max_loaded, str)
        self._max_loaded = max_loaded if isinstance(max_loaded, int) and max_loaded else math.inf
        self._budget = budget
        self._idle_unload = idle_unload or None
        self._drain = drain
        self._models: dict[str, ManagedModel] = {}
        self._wanted: dict[str, _Demand] = {}

    def __iter__(self) -> Iterator[ManagedModel]:
        return iter(list(self._models.values()))

    def statuses(self) -> list[ModelStatus]:
        """Return the status of each model, in order, as API processes receive it."""
        return [model.status() for model in self]

    def find(self, name: str, *, param: str = "name") -> ManagedModel:
        """Return the model with this name or alias. Raises ModelNotFound if there is none or if it is being removed;
        the error names the request's field `param`.
        """
        wanted = self._models.get(name) or next((model for model in self if name in model.about.aliases), None)
        if wanted is None or wanted.about.leaving:
            names = ", ".join(self._models) or "none"
            raise ModelNotFound(f"no model {quoted(name)} is served; known models: {names}", param=param)
        return wanted

    def add(self, model: ManagedModel) -> None:
        """Add a model that is not loaded. It replaces a model with the same name if that is neither loaded nor about to
        be, and takes over its aliases.

        Raises InvalidField if the other model is loaded or about to be, or if the name is an alias.
        """
        name = model.about.name
        before = self._models.get(name)
        if before is not None and before.state == ModelState.UNLOADED and name in self._wanted:
            raise InvalidField("name", f"{quoted(name)} is to be loaded; unload it first")
        if before is not None and before.state not in (ModelState.FAILED, ModelState.UNLOADED):
            advice = "try again once it is unloaded" if before.state == ModelState.UNLOADING else "unload it first"
            raise InvalidField("name", f"{quoted(name)} is {before.state}; {advice}")
        if any(name in other.about.aliases for other in self):
            raise InvalidField("name", f"{quoted(name)} is an alias")
        if before is not None:
            model.change(aliases=before.about.aliases)
            if before.about.path == model.about.path:
                model.change(adapters=before.about.adapters)
        model.change(idle_unload=self._idle_unload)
        self._models[name] = model

    def set_alias(self, alias: str, name: str | None) -> None:
        """Give the model `name` the further name `alias`, taking it from another model; with None as `name`, remove the
        alias.

        Raises ModelNotFound if there is no such model or alias, and InvalidField if the alias is the name of a model.
        """
        if alias in self._models:
            raise InvalidField("alias", f"{quoted(alias)} is the name of a model")
        target = None if name is None else self.find(name)
        if target is None and not any(alias in model.about.aliases for model in self):
            raise ModelNotFound(f"there is no alias {quoted(alias)}", param="alias")
        for model in self:
            aliases = [existing for existing in model.about.aliases if existing != alias]
            model.change(aliases=[*aliases, alias] if model is target else aliases)

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Let requests choose a LoRA adapter of the model `name`. Raises ModelNotFound if there is no such model, and
        InvalidField if the model has an adapter of that name.
        """
        model = self.find(name, param="model")
        if any(other.name == adapter.name for other in model.about.adapters):
            raise InvalidField(
                "name",
                f"{quoted(adapter.name)} has already been loaded for model {quoted(model.about.name)}; unload it first",
            )
        model.change(adapters=[*model.about.adapters, adapter])

    def remove_adapter(self, name: str, id: str) -> None:
        """Let no request choose the LoRA adapter with this id of the model `name` any more. Raises ModelNotFound if
        there is no such model.
        """
        model = self.find(name, param="model")
        model.change(adapters=[adapter for adapter in model.about.adapters if adapter.id != id])

    def keep(self, name: str, seconds: float | None) -> None:
        """Set after how many idle seconds the model `name`, if it is loaded, is unloaded (None: never). The value
        applies until the model is unloaded.

        Raises ModelNotFound if there is no such model.
        """
        model = self.find(name)
        if model.takes_memory:
            model.change(idle_unload=seconds)

    def request_load(self, name: str, now: float) -> None:
        """Record that a request waits for the model `name` at the time `now`, so that `update` loads the model. Raises
        ModelNotFound if there is no such model.
        """
        model = self.find(name)
        if model.about.name not in self._wanted:
            model.change(shortage="", is_too_large=False)  # it may fit now
        self._wanted.setdefault(model.about.name, _Demand(now, now)).last = now

    def load_first(self, now: float) -> None:
        """Load the first model at the server's start, and as many of the others as the limit and the memory allow.
        Models that are left out are loaded when requests need them.
        """
        first: list[ManagedModel] = []
        for model in self:
            decision = self._budget.decide(model, first) if self._by_memory else Decision.LOAD
            if isinstance(decision, Shortage):
                self._record_shortage(model, decision)
            is_tight = bool(first) and self._by_memory and not self._budget.fits_well(model, first)
            if decision is Decision.LOAD and not is_tight and len(first) < self._max_loaded:
                first.append(model)
                model.create_engines(now)
            else:
                model.change(on_demand=True)
        self._start(first)

    def load(self, models: Sequence[ManagedModel], now: float) -> None:
        """Create the engines of `models`, divide the memory for KV caches among all engines, and start the new engines.
        Does not wait until they are ready.
        """
        for model in models:
            model.create_engines(now)
        self._start(models)

    def _start(self, models: Sequence[ManagedModel]) -> None:
        self._budget.divide(self._loaded)
        for model in models:
            for engine in model.engines:
                engine.start()

    def unload(self, name: str, until: float, now: float) -> None:
        """Stop serving the model `name`, which is removed from the pool when it has ended. Its running requests may
        continue until the time `until`. Raises ModelNotFound if there is no such model.
        """
        model = self.find(name)
        model.change(leaving=True)
        model.unload(until, now)

    def update(self, now: float) -> list[ManagedModel]:
        """Load models that requests wait for, begin to unload idle models, and divide the memory for KV caches again if
        necessary. To be called at regular intervals.

        Returns the models whose processes the caller must end (`ManagedModel.end`) and then pass to `ended`.
        """
        for model in self:
            model.update_use(now)
        for model in self:
            seconds = model.about.idle_unload
            if seconds is not None and model.is_idle(now, seconds):
                self._evict(model, now, math.inf)
        self._make_space(now)
        self._budget.divide(self._loaded)
        return [model for model in self if model.may_end(now)]

    def ended(self, model: ManagedModel) -> None:
        """Record that the last engine process of a model has ended, so that the model is now unloaded.

        A model that was removed by `unload` leaves the pool, and requests no longer wait for it.
        """
        model.ended()
        model.change(idle_unload=self._idle_unload)
        if model.about.leaving:
            self._models.pop(model.about.name)
            self._wanted.pop(model.about.name, None)

    def _make_space(self, now: float) -> None:
        """Load the models that requests wait for if there is space, and begin to unload other models if there is not.

        Idle models are unloaded first. Models in use follow if they have been loaded for TURN_SECONDS and the requests
        have waited that long.
        """
        self._wanted = {name: demand for name, demand in self._wanted.items() if now - demand.last < WANT_SECONDS}
        waiting = [self._models[name] for name in self._wanted if name in self._models]
        waiting = [model for model in waiting if model.state == ModelState.UNLOADED]
        free = self._max_loaded - len(self._loaded)
        coming = sum(model.state == ModelState.UNLOADING for model in self)
        for model in waiting:
            yielding = [other for other in self if other.is_idle(now)]
            if now - self._wanted[model.about.name].first >= TURN_SECONDS:
                yielding += [other for other in self if other.has_had_turn(now) and other not in yielding]
            decision = self._budget.decide(model, self._loaded, yielding) if self._by_memory else Decision.LOAD
            if free > 0 and decision is Decision.LOAD:
                free -= 1
                del self._wanted[model.about.name]
                self.load([model], now)
            elif coming > 0:
                coming -= 1
            elif isinstance(decision, Shortage):
                if model.about.is_too_large != decision.is_too_large or not model.about.shortage:
                    self._record_shortage(model, decision)
            elif not yielding:
                return
            else:
                model.change(shortage="")  # it has only to wait
                # Those in use were all used just now.
                victim = min(yielding, key=lambda other: (other.last_used, other.ready_since))
                self._evict(victim, now, math.inf if victim.is_idle(now) else now + self._drain)

    @property
    def _loaded(self) -> list[ManagedModel]:
        """The models whose engine processes hold them in memory, or will do so soon."""
        return [model for model in self if model.takes_memory]

    @staticmethod
    def _record_shortage(model: ManagedModel, shortage: Shortage) -> None:
        log.log(logging.WARNING if shortage.is_too_large else logging.INFO, "%s", shortage.reason)
        model.change(shortage=shortage.reason, is_too_large=shortage.is_too_large)

    @staticmethod
    def _evict(model: ManagedModel, now: float, until: float) -> None:
        """Begin to unload a model, which stays in the pool and is loaded again when a request needs it. Running answers
        may continue until the time `until`.
        """
        model.change(on_demand=True)
        model.unload(until, now)
