"""Starts one engine process for each device, watches them, restarts those that die, and publishes what is running.

Works with threads alone, so that it can live in an API process, in the parent of several, or beside a reloader. What it
publishes (`board.json` in a folder that only this user can enter) is all that the API processes know of it.
"""

import contextlib
import logging
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from genai_server.config import Settings, device_options
from genai_server.engines.board import write_board
from genai_server.messages import Board, EngineReport, EngineSpec, EngineStatus
from genai_server.options.device import DeviceOptions

log = logging.getLogger(__name__)
FIRST_BACKOFF = 0.2
LAST_BACKOFF = 30.0
# An engine that has served for this long has recovered: the next restart is immediate again.
RECOVERED_AFTER = 60.0
STOP_TIMEOUT = 5.0


@dataclass
class Watched:
    """One engine under watch; `status` is replaced, never changed."""

    spec: EngineSpec
    status: EngineStatus
    process: "subprocess.Popen[bytes] | None" = None
    thread: threading.Thread | None = None
    backoff: float = field(default=FIRST_BACKOFF)


class Supervisor:
    """Owns the engine processes of one server, from `start` to `stop`.

    `on_nothing_loaded` is called, from a thread, when no device could load at the start. Raises ConfigurationError for
    wrong options of a device.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_nothing_loaded: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = device_options(settings)
        self.folder = Path(tempfile.mkdtemp(prefix="genai-server-"))
        self._secret = secrets.token_hex(32)
        self._on_nothing_loaded = on_nothing_loaded
        self._clock = clock
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._engines = [
            Watched(self._spec(settings, device), EngineStatus(device, "starting")) for device in settings.devices
        ]

    def start(self) -> None:
        """Start all engines; returns at once."""
        self._publish()
        for engine in self._engines:
            engine.thread = threading.Thread(
                target=self._watch, args=(engine,), name=f"watch-{engine.spec.device}", daemon=True
            )
            engine.thread.start()

    def stop(self) -> None:
        """End all engines and remove the folder."""
        self._stopping.set()
        for engine in self._engines:
            if engine.process is not None:
                _close_lifeline(engine.process)
        for engine in self._engines:
            if engine.process is not None:
                _end(engine.process)
            if engine.thread is not None:
                engine.thread.join(STOP_TIMEOUT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def statuses(self) -> list[EngineStatus]:
        """The engines now, in the order of the configuration."""
        with self._lock:
            return [engine.status for engine in self._engines]

    def _spec(self, settings: Settings, device: str) -> EngineSpec:
        socket_path = self.folder / f"{device.replace(':', '-')}.sock"
        return EngineSpec(
            device=device,
            model_dir=str(settings.model_dir),
            address="" if sys.platform == "win32" else str(socket_path),
            secret=self._secret,
            threads=settings.threads,
            max_batch_size=settings.max_batch_size,
            max_queue=settings.max_queue,
            prefill_chunk=settings.prefill_chunk,
            max_length=settings.max_length,
            scheduler=settings.scheduler,
            kv_cache_bytes=settings.kv_cache_bytes,
            cache_dir=str(settings.cache_path or ""),
            profile_dir=str(settings.profile_dir),
            profile_max_files=settings.profile_max_files,
            profile_max_bytes=settings.profile_max_bytes,
            profile_max_rows=settings.profile_max_rows,
            state_file=str(self.folder / f"{device.replace(':', '-')}.json"),
            log_level=settings.log_level,
            options=self._options.get(device, DeviceOptions()),
        )

    def _watch(self, engine: Watched) -> None:
        """Run one engine, again and again, until `stop`. A device that never loaded is not tried again."""
        while not self._stopping.is_set():
            try:
                report = self._launch(engine)
            except (OSError, msgspec.DecodeError) as error:
                report = EngineReport(error=f"the engine process cannot be started: {error}")
            if self._stopping.is_set():
                return
            if report.address:
                self._set(engine, state="ready", address=report.address, error=None)
                self._serve_until_death(engine)
            elif engine.status.restarts == 0:
                self._set(engine, state="failed", error=report.error)
                log.error("device %s cannot load the model: %s", engine.spec.device, report.error)
                self._check_any_loaded()
                return
            else:
                self._set(engine, state="restarting", error=report.error)
                log.error("device %s could not be restarted: %s", engine.spec.device, report.error)
            self._stopping.wait(engine.backoff)
            engine.backoff = min(engine.backoff * 2, LAST_BACKOFF)
            self._set(engine, restarts=engine.status.restarts + 1)

    def _launch(self, engine: Watched) -> EngineReport:
        """Start the process and wait for its report."""
        if engine.spec.address:
            Path(engine.spec.address).unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "genai_server.engine.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        engine.process = process
        self._set(engine, pid=process.pid)
        with contextlib.suppress(OSError, ValueError):  # it has died or `stop` came first: the missing report says so
            process.stdin.write(msgspec.json.encode(engine.spec) + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        process.stdout.close()
        if line:
            report = msgspec.json.decode(line, type=EngineReport)
        else:
            report = EngineReport(error=f"the engine process ended while loading, exit status {process.wait()}")
        if not report.address or self._stopping.is_set():
            _close_lifeline(process)
            _end(process)
            self._set(engine, pid=None)
        return report

    def _serve_until_death(self, engine: Watched) -> None:
        assert engine.process is not None
        log.info("device %s is ready, process %d", engine.spec.device, engine.process.pid)
        started = self._clock()
        status = engine.process.wait()
        _close_lifeline(engine.process)
        if self._stopping.is_set():
            self._set(engine, state="stopped", pid=None, address="")
            return
        log.error("the engine of device %s died, exit status %d; it is restarted", engine.spec.device, status)
        if self._clock() - started > RECOVERED_AFTER:
            engine.backoff = FIRST_BACKOFF
        error = f"the engine process died, exit status {status}"
        self._set(engine, state="restarting", pid=None, address="", error=error)

    def _check_any_loaded(self) -> None:
        if all(status.state == "failed" for status in self.statuses()):
            self._on_nothing_loaded()

    def _set(self, engine: Watched, **changes: object) -> None:
        with self._lock:
            engine.status = msgspec.structs.replace(engine.status, **changes)
        self._publish()

    def _publish(self) -> None:
        with self._lock:
            try:
                write_board(self.folder, Board(self._secret, [engine.status for engine in self._engines]))
            except FileNotFoundError:
                if not self._stopping.is_set():  # else the engines have removed the folder already
                    raise


def _close_lifeline(process: "subprocess.Popen[bytes]") -> None:
    """Order a process to leave: its standard input ends."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a process that was asked to leave; kill it if it does not."""
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
