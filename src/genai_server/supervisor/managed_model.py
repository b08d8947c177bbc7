"""A model as the supervisor has it: its engines, its use, and how it is unloaded."""

import time
from collections.abc import Callable, Sequence

import msgspec

from genai_server.messages.status_file import EngineState, EngineStatus, ModelState, ModelStatus
from genai_server.supervisor.engine_watch import EngineWatch

# Seconds without a request after which none is on its way to the engine any more, from an API process which had not
# read yet that the model is unloaded. A model that was just loaded waits as long for the request that wanted it.
SETTLED = 1.0

StartEngines = Callable[[ModelStatus], Sequence[EngineWatch]]


class ManagedModel:
    """One model, loaded or not; all times are seconds of a clock.

    Guarded by the supervisor's lock, but for `end`, which waits for processes.
    """

    def __init__(self, about: ModelStatus, start_engines: StartEngines, now: float) -> None:
        self.about = about
        self.engines: Sequence[EngineWatch] = ()
        self.last_used = now
        self._start_engines = start_engines
        self._counts: list[tuple[int, int]] = []
        self._unloading_until: float | None = None

    @property
    def state(self) -> ModelState:
        """The state now."""
        if self._unloading_until is not None:
            return ModelState.UNLOADING
        if not self.engines:
            return ModelState.UNLOADED
        states = {engine.status.state for engine in self.engines}
        if EngineState.READY in states:
            return ModelState.READY
        return ModelState.FAILED if states == {EngineState.FAILED} else ModelState.LOADING

    @property
    def takes_memory(self) -> bool:
        """Whether there is, or will be, a process that holds it."""
        return self.state in (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING)

    @property
    def num_requests(self) -> int:
        """Those that run or wait, when last looked."""
        return sum(requests for requests, _ in self._counts)

    def status(self) -> ModelStatus:
        """For the status file."""
        return msgspec.structs.replace(self.about, state=self.state)

    def engine_statuses(self) -> list[EngineStatus]:
        """For the status file."""
        found = [engine.status for engine in self.engines]
        if self._unloading_until is None:
            return found
        return [msgspec.structs.replace(status, state=EngineState.UNLOADING) for status in found]

    def change(self, **changes: object) -> None:
        """Change fields of its status."""
        self.about = msgspec.structs.replace(self.about, **changes)

    def load(self, now: float) -> None:
        """Start its engines."""
        self.last_used = now
        self.engines = self._start_engines(self.about)
        for engine in self.engines:
            engine.start()

    def look(self, now: float) -> None:
        """Look whether it is used."""
        beats = [engine.beat() for engine in self.engines]
        counts = [(beat.requests, beat.arrived) for beat in beats]
        if counts != self._counts or self.num_requests or self.state == ModelState.LOADING:
            self.last_used = now
        self._counts = counts

    def is_idle(self, now: float, seconds: float = SETTLED) -> bool:
        """Whether it is ready and was not used for so long."""
        return self.state == ModelState.READY and now - self.last_used >= max(seconds, SETTLED)

    def unload(self, until: float) -> None:
        """Take no more requests; what runs may go on until then, or less if this was said before."""
        self._unloading_until = until if self._unloading_until is None else min(until, self._unloading_until)

    def unload_began(self, now: float) -> None:
        """Requests may be on their way since then."""
        self.last_used = max(self.last_used, now)

    def may_end(self, now: float) -> bool:
        """Whether it is being unloaded and nothing runs any more, or its time is over."""
        if self._unloading_until is None:
            return False
        return now >= self._unloading_until or (not self.num_requests and now - self.last_used >= SETTLED)

    def end(self) -> None:
        """End its processes, which takes some time; all of their memory comes back."""
        for engine in self.engines:
            engine.unload()

    def ended(self) -> None:
        """They have ended."""
        self.engines, self._counts, self._unloading_until = (), [], None


def new_status(name: str, path: str, devices: Sequence[str], serial: int, *, on_demand: bool = False) -> ModelStatus:
    """A model that is not loaded yet."""
    created = int(time.time())
    return ModelStatus(name, path, list(devices), serial, ModelState.UNLOADED, created, on_demand=on_demand)
