"""Runs one engine: starts it, monitors it, and restarts it when it dies."""

import errno
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from genai_server.errors import in_one_line
from genai_server.messages.launch import Beat, EngineLaunch, EngineReport
from genai_server.messages.server_status import EngineState, EngineStatus
from genai_server.supervisor.engine_process import STOP_TIMEOUT, EngineProcess

log = logging.getLogger(__name__)
# Seconds before the first restart in a row; each next pause is twice as long, up to the longest.
FIRST_PAUSE = 0.2
MAX_PAUSE = 30.0
# An engine that has served for this long has recovered; a later death starts a new count.
RECOVERED_AFTER = 60.0
# The system's errors when this process, or all processes together, have too many open files.
_NO_FILES = (errno.EMFILE, errno.ENFILE)
# Seconds between two attempts after such an error.
_FILES_PAUSE = 0.2


class Restarts:
    """Counts the restarts of one engine in a row. All times are in seconds.

    More than `max_restarts` in a row, without RECOVERED_AFTER seconds of service in between, are a crash loop.
    """

    def __init__(self, max_restarts: int) -> None:
        self.in_a_row = 0
        self._max_restarts = max_restarts

    def served(self, seconds: float) -> None:
        """Record that the engine served for `seconds` before it died."""
        if seconds > RECOVERED_AFTER:
            self.in_a_row = 0

    def pause(self) -> float | None:
        """Return the seconds to wait before the next start, twice the previous pause; None to give up."""
        if self.in_a_row >= self._max_restarts:
            return None
        self.in_a_row += 1
        return min(FIRST_PAUSE * 2.0 ** (self.in_a_row - 1), MAX_PAUSE)


class EngineWatch:
    """Runs one engine in a thread of its own, with restarts, from `start` to `leave` or `unload`. The supervisor
    creates one for each model and device.

    `status` is replaced, never modified; `on_change` is then called, in this thread or in the watchdog's. `has_loaded`
    says whether the engine was ever ready. Timeouts are in seconds.
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
        """Start the thread. Does not wait for the engine."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the system gives the process no more threads
            self._fail(error)

    def leave(self) -> None:
        """Ask the engine to exit because the server ends. The engine also removes the supervisor's folder."""
        self._stopping.set()
        if self._process is not None:
            self._process.leave()

    def end(self) -> None:
        """Wait until an engine that was asked to exit has ended. Kills it if that takes too long."""
        if self._process is not None:
            self._process.end()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)

    def unload(self) -> None:
        """End only this engine: gracefully if it responds, otherwise by force."""
        self._is_unloaded = True
        self._stopping.set()
        if self._process is not None:
            self._process.unload()
        self.end()
        if self._launch.address:
            Path(self._launch.address).unlink(missing_ok=True)

    def beat(self) -> Beat:
        """Return the engine's newest heartbeat."""
        return self._process.beat if self._process is not None else Beat()

    @property
    def kv_bytes(self) -> int:
        """The size of the engine's KV cache in bytes; 0 unless the engine is ready."""
        return self.beat().kv_bytes if self.status.state == EngineState.READY else 0

    def resize(self, num_bytes: int) -> None:
        """Change the maximum size of the KV cache to `num_bytes`, at once or when the engine has loaded. It also
        applies after restarts.
        """
        with self._lock:
            if num_bytes == self._launch.spec.kv_bytes:
                return
            self._change_spec(kv_bytes=num_bytes)
            self._send_size()

    def _send_size(self) -> None:
        """Send the maximum size of the KV cache to an engine that has loaded. The caller must hold the lock, so that
        sizes arrive in order.
        """
        if self.status.state == EngineState.READY and self._process is not None and self._launch.spec.kv_bytes:
            self._process.resize(self._launch.spec.kv_bytes)

    def _change_spec(self, **changes: object) -> None:
        """Change fields of the configuration with which the next engine process starts. The caller must
        hold the lock.
        """
        spec = msgspec.structs.replace(self._launch.spec, **changes)
        self._launch = msgspec.structs.replace(self._launch, spec=spec)

    def _run(self) -> None:
        """Run the engine. An exception is reported as the engine's state, because nothing else would report it."""
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
        """Run the engine until it stops for good. An engine whose first load fails is not restarted."""
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
        """Start the engine process and wait for its report after loading."""
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
        """Start the engine process. Raises OSError if it cannot be started.

        Waits if there are too many open files, because that is temporary.
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
        """Wait until the engine process dies and return how it died."""
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
