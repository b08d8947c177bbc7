"""uvicorn's parent processes of API processes, taught how a drain is ended early."""

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

# Signals until the API processes themselves are killed: they drain, they end what runs, they have not ended.
_LAST_ORDER = 3


class Workers(Multiprocess):
    """Several API processes; one that dies is replaced.

    Told to stop, it waits for them to drain, at most `patience` seconds. A second signal cuts their drain short, a
    third kills them.
    """

    def __init__(self, config: Config, sockets: list[socket], patience: float) -> None:
        super().__init__(config, sockets)
        self.has_killed = False
        self._patience = patience

    @property
    def pids(self) -> list[int | None]:
        """The API processes."""
        return [process.pid for process in self.processes]

    @property
    def exit_statuses(self) -> list[int | None]:
        """How those that have ended did."""
        return [process.exitcode for process in self.processes]

    def handle_hup(self) -> None:
        """Hand SIGHUP on: uvicorn would start all anew, after a drain each, and obey no other signal meanwhile."""
        if sys.platform != "win32":
            for process in self.processes:
                if process.process.is_alive() and process.pid is not None:
                    # One that has no handler yet ends of it, and the next one reads the file.
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
    """One API process, which is started anew when a source file changes."""

    def __init__(self, config: Config, sockets: list[socket]) -> None:
        super().__init__(config, target=Server(config).run, sockets=sockets)
        self._orders = 1
        self.has_killed = False

    @property
    def pids(self) -> list[int | None]:
        """The API process."""
        return [self.process.pid]

    @property
    def exit_statuses(self) -> list[int | None]:
        """How it ended."""
        return [self.process.exitcode]

    def signal_handler(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops it; a second one cuts the drain of the API process short, a third one kills that."""
        if self.should_exit.is_set():
            self._orders += 1
            if self._orders >= _LAST_ORDER:
                self.has_killed = True
                self.process.kill()
            else:
                self.process.terminate()
        super().signal_handler(sig, frame)
