"""The supervisor's handle of one engine process, from its start to its death or until it hangs."""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from genai_server.child_process import start_module
from genai_server.config.environment import engine_environment
from genai_server.heartbeat import Beat, read_beat
from genai_server.messages.launch import RESIZE_ORDER, UNLOAD_ORDER, EngineReport, EngineSpec

# Seconds allowed for each token of a step, in addition to the timeout: a hundred times the time on slow machines.
SECONDS_PER_TOKEN = 0.1
# Seconds between two checks.
LOOK_EVERY = 1.0
# Seconds for a process to exit after it was asked to.
STOP_TIMEOUT = 5.0
_HUNG = "the engine process hung and was killed: "


class Watchdog:
    """Measures for how long the same heartbeat has been seen.

    The limit is the timeout plus SECONDS_PER_TOKEN for each token of the current step; a timeout of 0 sets no limit. A
    check counts for one interval at most, whatever a clock says. So a machine that slept or a stopped process group is
    not taken for a hanging engine.
    """

    def __init__(self, step_timeout: float) -> None:
        self._step_timeout = step_timeout
        self._beat = Beat(0, 0)
        self._seconds = 0.0

    def run(self, file: Path, ended: threading.Event, on_hang: Callable[[str], None]) -> None:
        """Check until `ended` is set or the engine hangs; `on_hang` is called once."""
        while not ended.wait(LOOK_EVERY):
            if reason := self.look(read_beat(file)):
                on_hang(reason)
                return

    def look(self, beat: Beat) -> str | None:
        """Check the newest heartbeat, LOOK_EVERY seconds after the previous check; returns what is wrong if it is too
        old.
        """
        if beat != self._beat:
            self._beat, self._seconds = beat, 0.0
            return None
        self._seconds += LOOK_EVERY
        allowed = self._step_timeout + beat.tokens * SECONDS_PER_TOKEN
        if not self._step_timeout or self._seconds < allowed:
            return None
        what = f"a step of {beat.tokens} tokens" if beat.tokens else "the engine's loop"
        return f"{what} has not ended for {allowed:g} s (GENAI_STEP_TIMEOUT={self._step_timeout:g})"


class EngineProcess:
    """Starts the process. `report` and `wait` belong to one thread; `leave` and `end` may be called by any.

    Raises OSError if it cannot be started, and ValueError for a spec that cannot be sent to it.
    """

    def __init__(self, spec: EngineSpec) -> None:
        for file in (spec.address, spec.heartbeat_file):
            if file:
                Path(file).unlink(missing_ok=True)
        self._spec = spec
        self._order = msgspec.json.encode(spec) + b"\n"
        self._killed_because: str | None = None
        self._process = start_module("genai_server.engine.process", engine_environment())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def report(self, load_timeout: float) -> EngineReport:
        """Wait for the report after loading. Kills the process if it exceeds the timeout (0: no limit)."""
        self._send(self._order)  # if the process has died or `leave` came first, the missing report shows it
        limit = threading.Timer(
            load_timeout, self._kill, [f"it did not load its model within {load_timeout:g} s (GENAI_LOAD_TIMEOUT)"]
        )
        if load_timeout:
            limit.start()
        line = self._output.readline()
        limit.cancel()
        self._output.close()
        if line:
            try:
                return msgspec.json.decode(line, type=EngineReport)
            except msgspec.DecodeError as error:
                return EngineReport(error=f"the engine process sent an invalid report: {error}")
        status = self._process.wait()
        self.leave()
        if self._killed_because is not None:
            return EngineReport(error=f"the engine process was killed: {self._killed_because}")
        return EngineReport(error=f"the engine process ended while loading, {in_words(status)}")

    def wait(self, step_timeout: float, on_hang: Callable[[str], None] = lambda error: None) -> str:
        """Wait for the process's death; returns how it died. Kills it if it hangs (timeout 0: never).

        `on_hang` is called in another thread before the kill, so that the status file has the reason before connections
        break.
        """

        def kill(reason: str) -> None:
            on_hang(_HUNG + reason)
            self._kill(reason)

        ended = threading.Event()
        watching = (Path(self._spec.heartbeat_file), ended, kill)
        watch = Watchdog(step_timeout).run
        threading.Thread(target=watch, args=watching, name=f"watchdog-{self._spec.device}", daemon=True).start()
        status = self._process.wait()
        ended.set()
        self.leave()
        if self._killed_because is not None:
            return _HUNG + self._killed_because
        return f"the engine process died, {in_words(status)}"

    def kill(self) -> None:
        """Kill the process at once. An orderly exit would also remove the supervisor's folder."""
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """Ask the process to exit by closing its standard input."""
        with contextlib.suppress(OSError):
            self._input.close()

    def resize(self, num_bytes: int) -> None:
        """Change the size of the memory for keys and values."""
        self._send(RESIZE_ORDER + b"%d\n" % num_bytes)

    def unload(self) -> None:
        """Ask this process alone to exit; the supervisor and its folder stay."""
        self._send(UNLOAD_ORDER)
        self.leave()

    def end(self) -> None:
        """Wait for the exit of a process that was asked to exit; kill it if that takes too long."""
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def _send(self, order: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # it is about to end
            self._input.write(order)
            self._input.flush()

    def _kill(self, reason: str) -> None:
        self._killed_because = reason
        self._process.kill()


def in_words(status: int) -> str:
    """An exit status with its meaning for an operator."""
    if status == -9:
        return "exit status -9: killed, by the kernel if memory ran out, or by a user"
    if status < 0:
        return f"exit status {status}: signal {signal.strsignal(-status) or -status}"
    return f"exit status {status}"
