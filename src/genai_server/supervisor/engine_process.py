"""The supervisor's handle of one engine process, from its start until it dies or is killed because it hangs."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from genai_server.config.environment import engine_environment
from genai_server.messages.frames import encode_frame
from genai_server.messages.launch import (
    BEAT_SECONDS,
    Beat,
    EngineLaunch,
    EngineReport,
    FromSupervisor,
    KeptOptions,
    Resize,
    Unload,
    report_decoder,
)
from genai_server.system.processes import in_words, start_module

# Seconds allowed for each token of a step, in addition to the timeout: a hundred times the time on slow machines.
SECONDS_PER_TOKEN = 0.1
# Seconds between two checks.
CHECK_INTERVAL = 1.0
# Seconds for a process to exit after it was asked to.
STOP_TIMEOUT = 5.0
_HUNG = "the engine process hung and was killed: "


class Watchdog:
    """Detects an engine that hangs, by the time since its last heartbeat.

    The limit is the timeout plus SECONDS_PER_TOKEN for each token of the step that the last heartbeat announced (the
    step may have begun BEAT_SECONDS later). A timeout of 0 disables the check. Each check counts as one interval,
    whatever the clock says, so that a machine that slept or a stopped process group is not mistaken for a hanging
    engine.
    """

    def __init__(self, step_timeout: float) -> None:
        self._step_timeout = step_timeout
        self._beat = Beat()
        self._seconds = 0.0

    def run(self, newest: Callable[[], Beat], ended: threading.Event, on_hang: Callable[[str], None]) -> None:
        """Check the heartbeats at regular intervals until `ended` is set or the engine hangs. `newest` returns the
        latest heartbeat. If the engine hangs, `on_hang` is called once, with the reason.
        """
        while not ended.wait(CHECK_INTERVAL):
            if reason := self.check(newest()):
                on_hang(reason)
                return

    def check(self, beat: Beat) -> str | None:
        """Check the newest heartbeat, CHECK_INTERVAL seconds after the previous check.

        Returns the reason, as a sentence for operators, if the heartbeat is so old that the engine hangs; otherwise
        None.
        """
        if beat != self._beat:
            self._beat, self._seconds = beat, 0.0
            return None
        self._seconds += CHECK_INTERVAL
        allowed = self._step_timeout + beat.tokens * SECONDS_PER_TOKEN
        if not self._step_timeout or self._seconds < allowed + BEAT_SECONDS:
            return None
        what = f"a step of {beat.tokens} tokens" if beat.tokens else "the engine's loop"
        return f"{what} has not ended for {allowed:g} s (GENAI_STEP_TIMEOUT={self._step_timeout:g})"


class EngineProcess:
    """Starts and controls an engine process.

    `report`, `wait` and `close` must be called in one thread; other methods are thread-safe. The constructor raises
    OSError if the process cannot be started, and ValueError for a launch message that cannot be encoded.
    """

    def __init__(self, launch: EngineLaunch) -> None:
        if launch.address:
            Path(launch.address).unlink(missing_ok=True)
        # The newest heartbeat, and what the next engine must be started with.
        self.beat = Beat()
        self.kept: KeptOptions = launch.kept
        self._device = launch.spec.device
        self._launch = encode_frame([launch])
        self._killed_because: str | None = None
        self._process = start_module("genai_server.engine.process", engine_environment())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._reports = self._read()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def report(self, load_timeout: float) -> EngineReport:
        """Wait for the engine's report after loading. Kills the process after `load_timeout` seconds (0: no limit).

        If the process dies or is killed, the returned report contains the error.
        """
        self._write(self._launch)  # if the process has died or `leave` came first, the missing report shows it
        limit = threading.Timer(
            load_timeout, self._kill, [f"it did not load its model within {load_timeout:g} s (GENAI_LOAD_TIMEOUT)"]
        )
        if load_timeout:
            limit.start()
        try:
            report = next(self._reports, None)
        except msgspec.DecodeError as error:
            report = EngineReport(error=f"the engine process sent an invalid report: {error}")
        finally:
            limit.cancel()
        if report is not None:
            return report
        status = self._process.wait()
        self.leave()
        if self._killed_because is not None:
            return EngineReport(error=f"the engine process was killed: {self._killed_because}")
        return EngineReport(error=f"the engine process ended while loading, {in_words(status)}")

    def wait(self, step_timeout: float, on_hang: Callable[[str], None] = lambda error: None) -> str:
        """Wait until the process dies and return how it died. The process is killed if it hangs, that is if a step
        takes more than `step_timeout` seconds; with 0 it never is.

        `on_hang` is called in another thread before the kill, so that API processes learn the reason before their
        connections break.
        """

        def kill(reason: str) -> None:
            on_hang(_HUNG + reason)
            self._kill(reason)

        ended = threading.Event()
        watching = (lambda: self.beat, ended, kill)
        watch = Watchdog(step_timeout).run
        threading.Thread(target=watch, args=watching, name=f"watchdog-{self._device}", daemon=True).start()
        try:
            for _ in self._reports:  # none comes; what comes before it is noted
                pass
        except msgspec.DecodeError as error:
            kill(f"it sent an invalid message: {error}")
        self.close()
        status = self._process.wait()
        ended.set()
        self.leave()
        if self._killed_because is not None:
            return _HUNG + self._killed_because
        return f"the engine process died, {in_words(status)}"

    def kill(self) -> None:
        """Kill the process at once, and wait until it has ended.

        Unlike `leave`, this does not make the engine remove the supervisor's folder.
        """
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Stop reading messages of the process. To be called in the thread of `report` and `wait`."""
        self._output.close()

    def leave(self) -> None:
        """Ask the process to exit, by closing its standard input. The engine then also removes the
        supervisor's folder.
        """
        with contextlib.suppress(OSError):
            self._input.close()

    def resize(self, num_bytes: int) -> None:
        """Ask the engine to change the size of its KV cache to `num_bytes`."""
        self._send(Resize(num_bytes))

    def unload(self) -> None:
        """Ask only this engine to exit, without removing the supervisor's folder."""
        self._send(Unload())
        self.leave()

    def end(self) -> None:
        """Wait until a process that was asked to exit has ended. Kills it after STOP_TIMEOUT seconds."""
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def _read(self) -> Iterator[EngineReport]:
        """Yield the engine's reports until its standard output ends. Heartbeats and options are stored in attributes.

        Raises msgspec.DecodeError for an invalid message.
        """
        decoder = report_decoder()
        while data := os.read(self._output.fileno(), 1 << 16):
            for message in decoder.feed(data):
                match message:
                    case Beat():
                        self.beat = message
                    case KeptOptions():
                        self.kept = message
                    case EngineReport():
                        yield message

    def _send(self, order: FromSupervisor) -> None:
        self._write(encode_frame([order]))

    def _write(self, frame: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # it is about to end
            self._input.write(frame)
            self._input.flush()

    def _kill(self, reason: str) -> None:
        self._killed_because = reason
        self._process.kill()
