"""Starts one engine process for each device, watches them, restarts those that die, and publishes what is running.

Works with threads alone, so that it can live in an API process, in the parent of several, or beside a reloader. What it
publishes (`board.json` in a folder that only this user can enter) is all that the API processes know of it.
"""

import logging
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from genai_server.config import Settings, device_options
from genai_server.engines.board import write_board
from genai_server.engines.engine_process import STOP_TIMEOUT, EngineProcess
from genai_server.engines.restarts import Restarts
from genai_server.messages import Board, EngineReport, EngineSpec, EngineStatus
from genai_server.options.device import DeviceOptions

log = logging.getLogger(__name__)


@dataclass
class Watched:
    """One engine under watch; `status` is replaced, never changed."""

    spec: EngineSpec
    status: EngineStatus
    restarts: Restarts
    process: EngineProcess | None = None
    thread: threading.Thread | None = None


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
        self._step_timeout = settings.step_timeout
        self._load_timeout = settings.load_timeout
        self._engines = [
            Watched(self._spec(settings, device), EngineStatus(device, "starting"), Restarts(settings.max_restarts))
            for device in settings.devices
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
                engine.process.leave()
        for engine in self._engines:
            if engine.process is not None:
                engine.process.end()
            if engine.thread is not None:
                engine.thread.join(STOP_TIMEOUT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def statuses(self) -> list[EngineStatus]:
        """The engines now, in the order of the configuration."""
        with self._lock:
            return [engine.status for engine in self._engines]

    def _spec(self, settings: Settings, device: str) -> EngineSpec:
        file = str(self.folder / device.replace(":", "-"))
        return EngineSpec(
            device=device,
            model_dir=str(settings.model_dir),
            address="" if sys.platform == "win32" else f"{file}.sock",
            secret=self._secret,
            threads=settings.threads,
            max_batch_size=settings.max_batch_size,
            max_queue=settings.max_queue,
            max_queue_tokens=settings.max_queue_tokens,
            prefill_chunk=settings.prefill_chunk,
            max_length=settings.max_length,
            scheduler=settings.scheduler,
            kv_cache_bytes=settings.kv_cache_bytes,
            cache_dir=str(settings.cache_path or ""),
            profile_dir=str(settings.profile_dir),
            profile_max_files=settings.profile_max_files,
            profile_max_bytes=settings.profile_max_bytes,
            profile_max_age=settings.profile_max_age,
            profile_max_rows=settings.profile_max_rows,
            state_file=f"{file}.json",
            heartbeat_file=f"{file}.beat",
            log_level=settings.log_level,
            log_format=settings.log_format,
            options=self._options.get(device, DeviceOptions()),
        )

    def _watch(self, engine: Watched) -> None:
        """Run one engine, again and again, until `stop`. A device that never loaded is not tried again."""
        while not self._stopping.is_set():
            report = self._launch(engine)
            if self._stopping.is_set():
                return
            if report.address:
                self._set(engine, state="ready", address=report.address, error=None)
                error = self._serve_until_death(engine)
                if self._stopping.is_set():
                    self._set(engine, state="stopped", pid=None, address="")
                    return
            elif engine.status.restarts == 0:
                self._set(engine, state="failed", error=report.error)
                log.error("device %s cannot load the model: %s", engine.spec.device, report.error)
                self._check_any_loaded()
                return
            else:
                error = report.error
            if not self._pause(engine, error):
                return

    def _launch(self, engine: Watched) -> EngineReport:
        """Start the process and wait for its report."""
        try:
            engine.process = EngineProcess(engine.spec)
        except OSError as error:
            return EngineReport(error=f"the engine process cannot be started: {error}")
        self._set(engine, pid=engine.process.pid)
        if self._stopping.is_set():  # `stop` may have looked for the process before it was there
            engine.process.leave()
        report = engine.process.report(self._load_timeout)
        if not report.address:
            engine.process.kill()
            self._set(engine, pid=None)
        return report

    def _serve_until_death(self, engine: Watched) -> str:
        """Wait for the engine's death; returns how it died."""
        assert engine.process is not None
        log.info("device %s is ready, process %d", engine.spec.device, engine.process.pid)
        started = self._clock()
        error = engine.process.wait(self._step_timeout)
        engine.restarts.served(self._clock() - started)
        return error

    def _pause(self, engine: Watched, error: str) -> bool:
        """Wait before the next start; returns False if there shall be none, for it is a crash loop or the end."""
        seconds = engine.restarts.pause()
        if seconds is None:
            given_up = f"given up after {engine.restarts.in_a_row} restarts in a row (GENAI_MAX_RESTARTS): {error}"
            log.error("device %s is %s", engine.spec.device, given_up)
            self._set(engine, state="failed", pid=None, address="", error=given_up)
            return False
        log.error("device %s: %s; it is restarted in %g s", engine.spec.device, error, seconds)
        self._set(engine, state="restarting", pid=None, address="", error=error)
        self._stopping.wait(seconds)
        self._set(engine, restarts=engine.status.restarts + 1)
        return True

    def _check_any_loaded(self) -> None:
        if all(status.state == "failed" and status.restarts == 0 for status in self.statuses()):
            self._on_nothing_loaded()

    def _set(self, engine: Watched, **changes: object) -> None:
        with self._lock:
            engine.status = msgspec.structs.replace(engine.status, **changes)
        self._publish()

    def _publish(self) -> None:
        with self._lock:
            try:
                write_board(self.folder, Board(self._secret, [engine.status for engine in self._engines]))
            except OSError as error:
                if not self._stopping.is_set():  # else the engines have removed the folder already
                    log.error("the board cannot be written, so /healthz may be out of date: %s", error)
