"""The parent processes of API processes, extended from uvicorn's."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pickle import UnpicklingError
from signal import Signals
from socket import socket
from types import FrameType
from typing import Any, cast

from uvicorn import Config, Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process
from uvicorn.supervisors.statreload import StatReload

from genai_server.child_process import GROUP_SIGNALS, group_signals_blocked
from genai_server.cli.serve.signals import ENDING, PARENTS_ORDER, STOP_SIGNALS, end_within
from genai_server.cli.serve.stand_in import StandIn
from genai_server.supervisor.engine_process import in_words

if sys.platform != "win32":
    from signal import SIGHUP

log = logging.getLogger(__name__)

# Signals until the API processes are killed: the first begins the drain, the second cuts it short, the third kills.
_LAST_ORDER = 3
# Seconds after which an API process that does not respond is replaced. A busy machine may take many for its start.
_RESPONSE_TIMEOUT = 60.0
# Seconds for the parent's own end after that of the API processes.
_OWN_END = 5.0
# The exit status of a process whose real one is lost, because the process that it was forked from has ended.
_LOST_STATUS = 255


class ApiProcess(Process):
    """One API process, which is watched without waiting for it.

    On Linux it is forked from a process that has imported everything, which takes a tenth of the time of a new
    interpreter. That process is started with the first API process, and again should it end.
    """

    def __init__(self, config: Config, sockets: list[socket], on_forked: Callable[[], None]) -> None:
        super().__init__(config, sockets)
        self._on_forked = on_forked
        # Linux only: macOS's own libraries may start threads, which a fork does not survive.
        if sys.platform == "linux":
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["genai_server.cli.serve.preloaded"])
            self.process = cast(Any, context).Process(target=self.run, args=(sockets,))
        # Whether it has said that it serves.
        self.is_serving = False
        self._start_error = ""
        # When it was asked whether it serves, by the clock; None if it has answered.
        self._asked: float | None = None
        self._is_unwanted = False

    def __getstate__(self) -> Mapping[str, Any]:
        """What the API process itself needs."""
        return {name: value for name, value in self.__dict__.items() if name not in ("process", "_on_forked")}

    @property
    def serves_soon(self) -> bool:
        """Whether it serves, or will within a moment because it is forked."""
        return self.is_serving or (sys.platform == "linux" and self.process.pid is not None and self.is_running)

    @property
    def is_running(self) -> bool:
        """Whether it runs, or is being started."""
        if self.process.pid is None:
            return not (self._start_error or self._is_unwanted)
        return self.process.is_alive()

    @property
    def exit_status(self) -> int | None:
        """Its exit status; None while it runs."""
        return None if self.process.pid is None else self.exitcode

    def start(self) -> None:
        """Start it in a thread: until the process that it is forked from has imported everything, a start waits."""
        threading.Thread(target=self._start, name="start", daemon=True).start()

    def _start(self) -> None:
        try:
            with _no_group_signals():
                super().start()
            if sys.platform == "linux":
                self._on_forked()
        except (OSError, EOFError) as error:
            self._start_error = f"it could not be started: {type(error).__name__}: {error}"
        if self._is_unwanted:
            self.terminate()

    def run(self, sockets: list[socket]) -> None:
        """What it runs where it is forked."""
        self.config.configure_logging()
        with suppress(KeyboardInterrupt):
            self.target(sockets)

    def target(self, sockets: list[socket] | None = None) -> None:
        """What it runs."""
        if sys.platform == "linux":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
        super().target(sockets)

    def look(self, now: float) -> str:
        """Ask whether it serves, and see what it last answered; returns why it must be replaced, or nothing."""
        if self.process.pid is None:
            return self._start_error
        if not self.process.is_alive():
            return self._death()
        try:
            while self.parent_conn.poll():
                self.is_serving, self._asked = self.parent_conn.recv(), None
            if self._asked is None:
                self.parent_conn.send(b"ping")
                self._asked = now
        except (OSError, EOFError, UnpicklingError):  # it is ending
            return ""
        if now - self._asked > _RESPONSE_TIMEOUT:
            return f"it did not respond for {_RESPONSE_TIMEOUT:g} s"
        return ""

    def terminate(self) -> None:
        """Send the stop signal, also to a process that is still being started."""
        self._is_unwanted = True
        if self.process.pid is None or self.exitcode is not None:
            return
        if sys.platform == "win32":
            super().terminate()
        else:
            os.kill(self.process.pid, PARENTS_ORDER)
            self.parent_conn.close()
            self.child_conn.close()

    def kill(self) -> None:
        """End it at once."""
        self._is_unwanted = True
        if self.process.pid is not None:
            super().kill()
            if sys.platform == "linux" and self.exitcode == _LOST_STATUS:
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, signal.SIGKILL)

    def _death(self) -> str:
        status = self.exitcode
        if status == _LOST_STATUS:
            return "the process that it was forked from died"
        return in_words(status) if status is not None else "it ended"


class Workers(Multiprocess):
    """Several API processes; one that dies or hangs is replaced.

    While none of them serves, `stand_in` answers. On a stop signal it waits at most `patience` seconds for their drain.
    A second signal cuts the drain short, a third kills them.
    """

    processes: list[ApiProcess]  # type: ignore[assignment]

    def __init__(self, config: Config, sockets: list[socket], stand_in: StandIn, patience: float) -> None:
        super().__init__(config, sockets)
        self.has_killed = False
        self._stand_in = stand_in
        self._patience = patience
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop_signal)

    @property
    def pids(self) -> list[int | None]:
        """The process ids of the API processes."""
        return [process.pid for process in self.processes]

    @property
    def exit_statuses(self) -> list[int | None]:
        """The exit statuses of the API processes; None for those that run."""
        return [process.exit_status for process in self.processes]

    def init_processes(self) -> None:
        self._stand_in.start()
        self.processes += [self._new_process() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """Replace the processes that died or hang."""
        now = time.monotonic()
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set() or not (reason := process.look(now)):
                continue
            process.kill()
            if process.exit_status == STARTUP_FAILURE:
                log.error("the API could not start; the server ends")
                self.should_exit.set()
                return
            log.error("API process %s died: %s; another one is started", process.pid or "", reason)
            self.processes[index] = self._new_process()
        if any(process.serves_soon for process in self.processes):
            self._stand_in.stop()
        else:
            self._stand_in.start()

    def handle_ttin(self) -> None:
        """SIGTTIN: start one more API process."""
        self.processes_num += 1
        self.processes.append(self._new_process())

    def handle_ttou(self) -> None:
        """SIGTTOU: stop one of several API processes."""
        if self.processes_num > 1:
            self.processes_num -= 1
            self.processes.pop().terminate()

    def handle_hup(self) -> None:
        """Pass SIGHUP on. uvicorn would drain and restart one process after another, deaf to other signals."""
        if sys.platform != "win32":
            for process in self.processes:
                if process.pid is not None and process.is_running:
                    # A process without a handler yet is ended by it; its replacement reads the file.
                    os.kill(process.pid, SIGHUP)

    def terminate_all(self) -> None:
        super().terminate_all()
        self._stand_in.stop()

    def join_all(self) -> None:
        orders, patience_ends = 1, time.monotonic() + self._patience
        while alive := [process for process in self.processes if process.is_running]:
            time.sleep(0.05)
            repeated = any(Signals(number) in STOP_SIGNALS for number in self.signal_queue)
            self.signal_queue.clear()
            orders += repeated
            if orders >= _LAST_ORDER or time.monotonic() > patience_ends:
                self.has_killed = True
                for process in alive:
                    process.kill()
            elif repeated:
                patience_ends = min(patience_ends, time.monotonic() + ENDING)
                for process in alive:
                    process.terminate()
        _end_origin()

    def _new_process(self) -> ApiProcess:
        process = ApiProcess(self.config, self.sockets, self._stand_in.stop)  # before it accepts connections
        process.start()
        return process

    def _on_stop_signal(self, number: int, _: FrameType | None) -> None:
        end_within(self._patience + _OWN_END)
        self.signal_queue.append(number)


class Reloader(StatReload):
    """One API process, which restarts when a source file changes.

    The process ends `patience` seconds after a stop signal at the latest.
    """

    def __init__(self, config: Config, sockets: list[socket], patience: float) -> None:
        super().__init__(config, target=Server(config).run, sockets=sockets)
        self._patience = patience
        self._orders = 1
        self.has_killed = False

    @property
    def pids(self) -> list[int | None]:
        """The process id of the API process."""
        return [self.process.pid]

    @property
    def exit_statuses(self) -> list[int | None]:
        """The exit status of the API process; None while it runs."""
        return [self.process.exitcode]

    def signal_handler(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops it. A second one cuts the drain of the API process short, a third one kills that."""
        end_within(self._patience + _OWN_END)
        if self.should_exit.is_set():
            self._orders += 1
            if self._orders >= _LAST_ORDER:
                self.has_killed = True
                self.process.kill()
            else:
                self.process.terminate()
        super().signal_handler(sig, frame)


def _end_origin() -> None:
    """End the process that API processes are forked from, which notices the end of this one after its imports only."""
    if sys.platform == "linux":
        from multiprocessing.forkserver import _forkserver

        if (pid := getattr(_forkserver, "_forkserver_pid", None)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def _no_group_signals() -> Iterator[None]:
    """Start processes that no signal to the whole process group reaches.

    Otherwise such a signal would end the process that API processes are forked from, before their drain.
    """
    if sys.platform == "linux":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # otherwise it starts below, and unblocks signals when it has
        with group_signals_blocked():
            yield
    else:
        yield
