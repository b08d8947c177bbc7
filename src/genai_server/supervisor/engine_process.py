"""Runs one engine, the process that runs a model on a device: `EngineProcess` starts the process, `Watchdog` detects
that it hangs, and `EngineWatch` restarts it when it dies, as often as `Restarts` allows.
"""

import contextlib
import errno
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from genai_server.config.environment import engine_environment
from genai_server.errors import in_one_line
from genai_server.messages.frames import encode_frame
from genai_server.messages.launch import (
    BEAT_SECONDS,
    Beat,
    EngineLaunch,
    EngineReport,
    FromSupervisor,
    Resize,
    RetainedOptions,
    Unload,
    report_decoder,
)
from genai_server.messages.server_status import EngineState, EngineStatus
from genai_server.system.processes import in_words, start_module

log = logging.getLogger(__name__)
# Seconds allowed for each token of a step, in addition to the timeout: a hundred times the time on slow machines.
SECONDS_PER_TOKEN = 0.1
# Seconds between two checks.
CHECK_INTERVAL = 1.0
# Seconds for a process to exit after it was asked to.
STOP_TIMEOUT = 5.0
_HUNG = "the engine process hung and was killed: "
# Seconds before the first restart in a row; each next pause is twice as long, up to the longest.
FIRST_PAUSE = 0.2
MAX_PAUSE = 30.0
# An engine that has served for this long has recovered; a later death starts a new count.
RECOVERED_AFTER = 60.0
# The system's errors when this process, or all processes together, have too many open files.
_NO_FILES = (errno.EMFILE, errno.ENFILE)
# Seconds between two attempts after such an error.
_FILES_PAUSE = 0.2


class Watchdog:
    """Detects, by the time since the last heartbeat, that an engine hangs.

    An engine hangs if its next heartbeat does not come within the step timeout (in seconds; 0 disables the check), plus
    SECONDS_PER_TOKEN for each token of the step that the last heartbeat announced, plus BEAT_SECONDS. Each check counts
    as one interval of CHECK_INTERVAL seconds, whatever the clock says, so that a machine that slept or a stopped
    process group is not mistaken for a hanging engine.
    """

    def __init__(self, step_timeout: float) -> None:
        self._step_timeout = step_timeout
        self._beat = Beat()
        self._seconds = 0.0

    def run(self, newest: Callable[[], Beat], ended: threading.Event, on_hang: Callable[[str], None]) -> None:
        """Check the engine's heartbeats every CHECK_INTERVAL seconds until `ended` is set or the engine hangs. `newest`
        returns the latest heartbeat. If the engine hangs, `on_hang` is called once, with the reason.
        """
        while not ended.wait(CHECK_INTERVAL):
            if reason := self.check(newest()):
                on_hang(reason)
                return

    def check(self, beat: Beat) -> str | None:
        """Check the newest heartbeat of the engine. To be called every CHECK_INTERVAL seconds.

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
    """One engine process, from its start by the constructor to its end: sends it commands, receives its heartbeats, and
    kills it when it hangs. EngineWatch creates a new one for each restart.

    `report`, `wait` and `close` must be called in one thread; other methods are thread-safe. The constructor raises
    OSError if the process cannot be started, and ValueError for a launch message that cannot be encoded.
    """

    def __init__(self, launch: EngineLaunch) -> None:
        if launch.address:
            Path(launch.address).unlink(missing_ok=True)
        # The newest heartbeat, and what the next engine must be started with.
        self.beat = Beat()
        self.kept: RetainedOptions = launch.kept
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
        """The process id of the engine process."""
        return self._process.pid

    def report(self, load_timeout: float) -> EngineReport:
        """Send the launch message to the new process, wait until it has loaded its model, and return its report. The
        process is killed if it has not reported after `load_timeout` seconds (0: no limit).

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
        """Wait until the engine process dies, and return how it died, as a sentence for operators. The process is
        killed if it hangs, which means that a step takes more than `step_timeout` seconds; with 0 it is never killed.

        `on_hang` is called with the reason, in another thread, before the kill, so that API processes learn the reason
        before their connections break.
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
        """Kill the engine process at once, and wait until it has ended.

        Unlike `leave`, this does not make the engine remove the supervisor's folder.
        """
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Stop reading messages of the engine process. Must be called in the thread that has called `report` and
        `wait`.
        """
        self._output.close()

    def leave(self) -> None:
        """Ask the engine process to exit because the server ends, by closing its standard input. The engine then also
        removes the supervisor's folder.
        """
        with contextlib.suppress(OSError):
            self._input.close()

    def resize(self, num_bytes: int) -> None:
        """Ask the engine to change the maximum size of its KV cache to `num_bytes` bytes. Does not wait for it."""
        self._send(Resize(num_bytes))

    def unload(self) -> None:
        """Ask the engine process to exit while the server continues: unlike with `leave`, the engine does not remove
        the supervisor's folder. Does not wait for the exit.
        """
        self._send(Unload())
        self.leave()

    def end(self) -> None:
        """Wait until the engine process, which was asked to exit, has ended. After STOP_TIMEOUT seconds it is
        killed.
        """
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def _read(self) -> Iterator[EngineReport]:
        """Read the engine's messages until its standard output ends, and yield its reports. The newest heartbeat and
        the newest runtime options are stored in the attributes `beat` and `kept`.

        Raises msgspec.DecodeError for an invalid message.
        """
        decoder = report_decoder()
        while data := os.read(self._output.fileno(), 1 << 16):
            for message in decoder.feed(data):
                match message:
                    case Beat():
                        self.beat = message
                    case RetainedOptions():
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


class Restarts:
    """Counts how often one engine was restarted in a row, and says how long to wait before the next restart. All times
    are in seconds.

    More than `max_restarts` restarts in a row, without RECOVERED_AFTER seconds of service in between, are a crash loop,
    after which the engine is given up.
    """

    def __init__(self, max_restarts: int) -> None:
        self.in_a_row = 0
        self._max_restarts = max_restarts

    def served(self, seconds: float) -> None:
        """Record that the engine served requests for `seconds` before it died. After more than RECOVERED_AFTER seconds,
        the count of restarts begins again at 0.
        """
        if seconds > RECOVERED_AFTER:
            self.in_a_row = 0

    def pause(self) -> float | None:
        """Count a restart, and return the seconds to wait before it: twice the previous pause, at most MAX_PAUSE. None
        if the engine is to be given up.
        """
        if self.in_a_row >= self._max_restarts:
            return None
        self.in_a_row += 1
        return min(FIRST_PAUSE * 2.0 ** (self.in_a_row - 1), MAX_PAUSE)


class EngineWatch:
    """Runs one engine in a thread of its own and restarts it when it dies, from `start` to `leave` or `unload`. The
    supervisor creates one for each model and device.

    `status` is the engine's current status. It is replaced, never modified; after each change, `on_change` is called in
    the thread of the engine or in that of its watchdog. `has_loaded` says whether the engine was ever ready. Timeouts
    are in seconds.
    """

    def __init__(
        self,
        launch: EngineLaunch,
        status: EngineStatus,
        restarts: Restarts,
        on_change: Callable[[], None],
        *,
        step_timeout: float,
        load_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.status = status
        self.has_loaded = False
        # The least and the most memory for keys and values in the host's memory, in bytes; None until it has loaded.
        self.kv_range: tuple[int, int] | None = None
        self._launch = launch
        # Its name in the log.
        self._name = f"model {status.model} on device {launch.spec.device}"
        self._restarts = restarts
        self._on_change = on_change
        self._step_timeout = step_timeout
        self._load_timeout = load_timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._is_unloaded = False
        self._process: EngineProcess | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{launch.spec.device}", daemon=True)

    def start(self) -> None:
        """Start the thread that runs the engine. Does not wait until the engine is ready."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the system gives the process no more threads
            self._fail(error)

    def leave(self) -> None:
        """Ask the engine to exit because the server ends. The engine also removes the supervisor's folder. Does not
        wait; call `end` for that.
        """
        self._stopping.set()
        if self._process is not None:
            self._process.leave()

    def end(self) -> None:
        """Wait until the engine, which was asked to exit by `leave`, has ended. After STOP_TIMEOUT seconds it is
        killed.
        """
        if self._process is not None:
            self._process.end()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)

    def unload(self) -> None:
        """End only this engine, while the server continues, and wait until it has ended. It is killed if it does not
        exit within STOP_TIMEOUT seconds.
        """
        self._is_unloaded = True
        self._stopping.set()
        if self._process is not None:
            self._process.unload()
        self.end()
        if self._launch.address:
            Path(self._launch.address).unlink(missing_ok=True)

    def beat(self) -> Beat:
        """Return the engine's newest heartbeat, which has its number of requests and the size of its KV cache. Before
        the first heartbeat, all of its values are 0.
        """
        return self._process.beat if self._process is not None else Beat()

    @property
    def kv_bytes(self) -> int:
        """The size of the engine's KV cache in bytes; 0 unless the engine is ready."""
        return self.beat().kv_bytes if self.status.state == EngineState.READY else 0

    def resize(self, num_bytes: int) -> None:
        """Change the maximum size of the engine's KV cache to `num_bytes` bytes, at once or when the engine has loaded.
        The size stays in force after restarts.
        """
        with self._lock:
            if num_bytes == self._launch.spec.kv_bytes:
                return
            self._change_spec(kv_bytes=num_bytes)
            self._send_size()

    def _send_size(self) -> None:
        """Send the configured maximum size of the KV cache to the engine if it has loaded. The caller must hold the
        lock, so that sizes arrive in order.
        """
        if self.status.state == EngineState.READY and self._process is not None and self._launch.spec.kv_bytes:
            self._process.resize(self._launch.spec.kv_bytes)

    def _change_spec(self, **changes: object) -> None:
        """Change the given fields of the EngineSpec, the configuration with which the next engine process starts. The
        caller must hold the lock.
        """
        spec = msgspec.structs.replace(self._launch.spec, **changes)
        self._launch = msgspec.structs.replace(self._launch, spec=spec)

    def _run(self) -> None:
        """The body of the thread: run the engine until it stops for good. An exception makes the engine's state FAILED,
        with the error, because nothing else would report it.
        """
        try:
            self._watch()
        except BaseException as error:
            log.exception("watching %s", self._name)
            if self._process is not None:
                self._process.kill()
            self._fail(error)
        finally:
            if self._process is not None:
                self._process.close()

    def _fail(self, error: BaseException) -> None:
        self._set(state=EngineState.FAILED, pid=None, address="", error=f"it cannot be started: {in_one_line(error)}")

    def _watch(self) -> None:
        """Start the engine, and again whenever it dies, until it is stopped or has died too often. An engine whose
        first load fails is not restarted.
        """
        while not self._stopping.is_set():
            report = self._start()
            if self._stopping.is_set():
                return
            if report.address:
                self.has_loaded = True
                # A restarted engine loads adapters with their requests, so a missing file does not keep it from
                # starting.
                with self._lock:
                    self._change_spec(adapters=[])
                # Logged before the state changes, because observers of the state may log more.
                cores = "" if report.cores is None else f", {report.cores.in_words()}"
                log.info("%s is ready, process %d%s", self._name, self.status.pid, cores)
                self.kv_range = report.min_kv_bytes, report.max_kv_bytes
                self._set(
                    state=EngineState.READY,
                    address=report.address,
                    error=None,
                    hung=False,
                    max_length=report.max_length,
                    limited_by=report.limited_by,
                    cores=report.cores,
                )
                with self._lock:
                    self._send_size()  # it may have changed while the engine loaded
                error = self._serve_until_death()
                if self._stopping.is_set():
                    self._set(state=EngineState.STOPPED, pid=None, address="")
                    return
            elif self.status.restarts == 0:
                log.error("%s cannot be loaded: %s", self._name, report.error)
                self._set(state=EngineState.FAILED, error=report.error)
                return
            else:
                error = report.error
            if not self._pause(error):
                return

    def _start(self) -> EngineReport:
        """Start the engine process, and return its report after loading. If the process cannot be started or cannot
        load the model, the report contains the error, and the process has ended.
        """
        try:
            self._process = self._start_process()
        except OSError as error:
            return EngineReport(error=f"the engine process cannot be started: {error}")
        self._set(pid=self._process.pid)
        if self._stopping.is_set():  # `leave` or `unload` may have been called before the process existed
            self._process.kill() if self._is_unloaded else self._process.leave()
        report = self._process.report(self._load_timeout)
        if not report.address:
            self._process.kill()
            self._process.close()
            self._set(pid=None)
        return report

    def _start_process(self) -> EngineProcess:
        """Start the engine process and return it. Raises OSError if it cannot be started.

        While the system has too many open files, it waits and tries again, because that is temporary.
        """
        while True:
            try:
                return EngineProcess(self._launch)
            except OSError as error:
                if error.errno not in _NO_FILES or self._stopping.is_set():
                    raise
                waiting = f"the engine process waits for free file descriptors: {error}"
            if self.status.error != waiting:
                log.error("%s: %s", self._name, waiting)
                self._set(error=waiting)
            self._stopping.wait(_FILES_PAUSE)

    def _serve_until_death(self) -> str:
        """Wait until the engine process dies, and return how it died, as a sentence for operators. Also remembers the
        runtime options and the time of service for the next start.
        """
        assert self._process is not None
        started = self._clock()
        error = self._process.wait(self._step_timeout, lambda reason: self._set(error=reason, hung=True))
        self._restarts.served(self._clock() - started)
        with self._lock:
            self._launch = msgspec.structs.replace(self._launch, kept=self._process.kept)
        return error

    def _pause(self, error: str) -> bool:
        """Wait before the engine is started again after it died for the reason `error`. The wait ends early when the
        engine is to stop.

        Returns False, without waiting, if the engine is not started again because it has died too often in a row.
        """
        seconds = self._restarts.pause()
        if seconds is None:
            given_up = f"given up after {self._restarts.in_a_row} restarts in a row (GENAI_MAX_RESTARTS): {error}"
            log.error("%s is %s", self._name, given_up)
            self._set(state=EngineState.FAILED, pid=None, address="", error=given_up)
            return False
        log.error("%s: %s; it is restarted in %g s", self._name, error, seconds)
        self._set(state=EngineState.RESTARTING, pid=None, address="", error=error)
        self._stopping.wait(seconds)
        self._set(restarts=self.status.restarts + 1)
        return True

    def _set(self, **changes: object) -> None:
        if "state" in changes:
            changes["since"] = time.time()
        with self._lock:
            self.status = msgspec.structs.replace(self.status, **changes)
        self._on_change()
