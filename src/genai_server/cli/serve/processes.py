"""uvicorn's parent processes of API processes, extended so that a drain can be cut short."""

import os
import sys
import time
from signal import Signals
from socket import socket
from types import FrameType

from uvicorn import Config, Server
from uvicorn.server import HANDLED_SIGNALS as STOP_SIGNALS
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.statreload import StatReload

if sys.platform != "win32":
    from signal import SIGHUP

# Signals until the API processes are killed: the first begins the drain, the second cuts it short, the third kills.
_LAST_ORDER = 3


class Workers(Multiprocess):
    """Several API processes; one that dies is replaced.

    On a stop signal it waits at most `patience` seconds for their drain. A second signal cuts the drain short, a third
    kills them.
    """

    def __init__(self, config: Config, sockets: list[socket], patience: float) -> None:
        super().__init__(config, sockets)
        self.has_killed = False
        self._patience = patience

    @property
    def pids(self) -> list[int | None]:
        """The process ids of the API processes."""
        return [process.pid for process in self.processes]

    @property
    def exit_statuses(self) -> list[int | None]:
        """The exit statuses of the API processes; None for those that run."""
        return [process.exitcode for process in self.processes]

    def handle_hup(self) -> None:
        """Pass SIGHUP on. uvicorn would drain and restart one process after another, deaf to other signals."""
        if sys.platform != "win32":
            for process in self.processes:
                if process.process.is_alive() and process.pid is not None:
                    # A process without a handler yet is ended by it; its replacement reads the file.
                    os.kill(process.pid, SIGHUP)

    def join_all(self) -> None:
        orders, patience_ends = 1, time.monotonic() + self._patience
        while alive := [process for process in self.processes if process.process.is_alive()]:
            alive[0].process.join(0.1)
            repeated = any(Signals(number) in STOP_SIGNALS for number in self.signal_queue)
            self.signal_queue.clear()
            orders += repeated
            if orders >= _LAST_ORDER or time.monotonic() > patience_ends:
                self.has_killed = True
                for process in alive:
                    process.kill()
            elif repeated:
                for process in alive:
                    process.terminate()


class Reloader(StatReload):
    """One API process, which restarts when a source file changes."""

    def __init__(self, config: Config, sockets: list[socket]) -> None:
        super().__init__(config, target=Server(config).run, sockets=sockets)
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
        if self.should_exit.is_set():
            self._orders += 1
            if self._orders >= _LAST_ORDER:
                self.has_killed = True
                self.process.kill()
            else:
                self.process.terminate()
        super().signal_handler(sig, frame)
