"""The supervisor's view of a model: its engines, its use, and its unloading."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from genai_server.errors import in_one_line
from genai_server.messages.status_file import EngineState, EngineStatus, ModelState, ModelStatus
from genai_server.pooling_model import task_of
from genai_server.supervisor.engine_watch import EngineWatch

log = logging.getLogger(__name__)
# Seconds without requests before an unloading model ends, because an API process may have sent one before it read the
# new status. A newly loaded model waits as long for the request that caused it.
SETTLED = 1.0

StartEngines = Callable[[ModelStatus], Sequence[EngineWatch]]


class ManagedModel:
    """One model, loaded or not. All times are seconds of one clock.

    Guarded by the supervisor's lock, except `end`, which waits for processes.
    """

    def __init__(self, about: ModelStatus, start_engines: StartEngines, now: float) -> None:
        self.about = about
        self.engines: Sequence[EngineWatch] = ()
        self.last_used = now
        self._start_engines = start_engines
        self._counts: list[tuple[int, int]] = []
        self._unloading_until: float | None = None
        # Why its engines could not be created; "" if they could, or were not needed yet.
        self._failed = ""

    @property
    def state(self) -> ModelState:
        """The current state."""
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
        """Whether a process holds the model, or soon will."""
        return self.state in (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING)

    @property
    def num_requests(self) -> int:
        """Running and waiting requests at the last `look`."""
        return sum(requests for requests, _ in self._counts)

    def status(self) -> ModelStatus:
        """The model's part of the status file."""
        return msgspec.structs.replace(self.about, state=self.state)

    def engine_statuses(self) -> list[EngineStatus]:
        """The engines' part of the status file."""
        found = [engine.status for engine in self.engines] or self._without_engines()
        if self._unloading_until is None:
            return found
        return [msgspec.structs.replace(status, state=EngineState.UNLOADING) for status in found]

    def _without_engines(self) -> list[EngineStatus]:
        """The statuses of engines that could not be created; empty if the model is merely not loaded."""
        if not self._failed:
            return []
        about = self.about
        return [
            EngineStatus(device, EngineState.FAILED, error=self._failed, model=about.name, serial=about.serial)
            for device in about.devices
        ]

    def change(self, **changes: object) -> None:
        """Change fields of its status."""
        self.about = msgspec.structs.replace(self.about, **changes)

    def load(self, now: float) -> None:
        """Start its engines. A failure to create one becomes the model's state."""
        self.last_used = now
        try:
            self.engines = self._start_engines(self.about)
        except Exception as error:
            log.exception("loading model %s", self.about.name)
            self._failed = in_one_line(error)
            return
        for engine in self.engines:
            engine.start()

    def look(self, now: float) -> None:
        """Update the counts of requests and the time of the last use."""
        beats = [engine.beat() for engine in self.engines]
        counts = [(beat.requests, beat.arrived) for beat in beats]
        if counts != self._counts or self.num_requests or self.state == ModelState.LOADING:
            self.last_used = now
        self._counts = counts

    def is_idle(self, now: float, seconds: float = SETTLED) -> bool:
        """Whether the model is ready and has been unused for this number of seconds."""
        return self.state == ModelState.READY and now - self.last_used >= max(seconds, SETTLED)

    def unload(self, until: float) -> None:
        """Accept no more requests. Running ones may continue until the given time, or an earlier one from before."""
        self._unloading_until = until if self._unloading_until is None else min(until, self._unloading_until)

    def unload_began(self, now: float) -> None:
        """Note the time after which the last requests may still arrive."""
        self.last_used = max(self.last_used, now)

    def may_end(self, now: float) -> bool:
        """Whether the model is unloading, and has no more requests or no more time."""
        if self._unloading_until is None:
            return False
        return now >= self._unloading_until or (not self.num_requests and now - self.last_used >= SETTLED)

    def end(self) -> None:
        """End the processes, which takes some time and frees all of their memory."""
        for engine in self.engines:
            engine.unload()

    def ended(self) -> None:
        """Note that the processes have ended."""
        self.engines, self._counts, self._unloading_until = (), [], None


def new_status(name: str, path: str, devices: Sequence[str], serial: int, *, on_demand: bool = False) -> ModelStatus:
    """The status of a model that is not loaded yet."""
    created = int(time.time())
    task = task_of(Path(path))
    return ModelStatus(name, path, list(devices), serial, ModelState.UNLOADED, created, on_demand=on_demand, task=task)
