"""Connects the processes of a server to its supervisor, the process that starts engines (which run models) and restarts
them. The supervisor is started here if there is none: `find_or_start` returns its address, and `SupervisorThread` keeps
it running.
"""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil
from filelock import FileLock

from genai_server.cli.serve.supervisor_start import start_supervisor
from genai_server.config.settings import Settings
from genai_server.engine_client.supervisor import FindSupervisor, SupervisorClient
from genai_server.errors import GenaiServerError
from genai_server.messages.server_status import NO_SERVER, EngineState, ServerStatus
from genai_server.messages.supervisor_protocol import LOCK, EndServer, SupervisorAddress, SupervisorLaunch, read_address
from genai_server.system.processes import in_words, open_runtime_folder

# Seconds after which a supervisor that does not listen is killed.
_START_TIMEOUT = 60.0
# Seconds after which a supervisor that has been told to end is killed. Each engine may take several.
_END_TIMEOUT = 30.0
# Seconds after a failed start.
_PAUSE = 5.0

log = logging.getLogger(__name__)
# The supervisors that this process has started, which may outlive it; kept for their exit statuses.
_started: list["subprocess.Popen[bytes]"] = []


def find_or_start(
    settings: Settings, first: int, prepared: list["subprocess.Popen[bytes]"] | None = None
) -> SupervisorAddress:
    """Return the address of a server's supervisor (the process that starts engines), and start it if it does not run
    yet. `first` is the process id of the server's first process, by which all its processes find the same supervisor.

    `prepared` holds supervisor processes that were started in advance and wait for their launch message (see
    supervisor_start.py); if the supervisor has to be started, one is taken from this list. Raises OSError if the
    supervisor cannot be started, and ConfigurationError if its folder cannot be created.
    """
    while True:
        folder = open_runtime_folder(first)
        with contextlib.suppress(FileNotFoundError), FileLock(folder / LOCK, mode=0o600):
            if not _listens(folder):
                process = prepared.pop() if prepared else start_supervisor()
                _launch(process, SupervisorLaunch(str(folder), settings.model_dump(mode="json"), first))
            return read_address(folder)
        # The supervisor has just removed the folder.


def _listens(folder: Path) -> bool:
    """Whether `folder`, a server's runtime folder, has the address of a supervisor that accepts connections."""
    try:
        address = read_address(folder).address
        if sys.platform != "win32" and "/" in address:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(address)
        else:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port))).close()
    except (OSError, msgspec.DecodeError, ValueError):
        return False
    return True


def _launch(process: "subprocess.Popen[bytes]", launch: SupervisorLaunch) -> None:
    """Send the launch message, with folder and settings, to a new supervisor process, and wait until the supervisor
    listens.

    Raises OSError, after a pause, if it fails to start.
    """
    _started.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    limit = threading.Timer(_START_TIMEOUT, process.kill)
    limit.start()
    with process.stdin, process.stdout:
        with contextlib.suppress(OSError):  # it has ended
            process.stdin.write(msgspec.json.encode(launch))
            process.stdin.close()
        listens = bool(process.stdout.readline())
    limit.cancel()
    if not listens:
        _fail(f"the supervisor ended while it started, {in_words(process.wait())}")


def _fail(reason: str) -> NoReturn:
    """Log `reason`, why the supervisor does not start, wait for the pause before the next attempt, and raise
    OSError.
    """
    log.error("%s; it is started again in %g s", reason, _PAUSE)
    time.sleep(_PAUSE)
    raise OSError(reason)


class SupervisorThread:
    """A thread that stays connected to the supervisor, the process that starts engines, and starts it if it does not
    run. The first process of a server has one such thread, from its construction to `end`, so that the supervisor keeps
    running even if API processes (which answer HTTP requests) end and others are started.

    `find` returns the supervisor's address, and starts it if necessary. `status` is the last status that the supervisor
    has reported; it can be read in any thread. The thread calls `on_nothing_loaded` if no device could load its model
    at the start, and `on_started` once, when every device has loaded or failed and at least one is ready.
    """

    def __init__(
        self,
        find: FindSupervisor,
        *,
        on_nothing_loaded: Callable[[], None] = lambda: None,
        on_started: Callable[[ServerStatus], None] = lambda status: None,
    ) -> None:
        self.status = NO_SERVER
        self._find = find
        # The supervisor's process id; 0 until it listens.
        self._pid = 0
        self._on_nothing_loaded = on_nothing_loaded
        self._on_started = on_started
        self._is_ending = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask the supervisor to end as soon as no API process uses it any more, and wait until it has ended. If that
        takes too long, it is killed.
        """
        self._is_ending.set()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._leave)
        self._thread.join()
        if self._pid:
            with contextlib.suppress(psutil.NoSuchProcess):
                supervisor = psutil.Process(self._pid)
                try:
                    supervisor.wait(_END_TIMEOUT)
                except psutil.TimeoutExpired:
                    log.error("the supervisor does not end; it is killed")
                    supervisor.kill()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._follow())

    def _found(self) -> SupervisorAddress:
        address = self._find()
        self._pid = address.pid
        return address

    def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        self._task = asyncio.current_task()
        with contextlib.closing(SupervisorClient(self._found)) as supervisor:
            try:
                is_over = False
                while not self._is_ending.is_set():
                    self.status = supervisor.status
                    is_over = is_over or self._report(self.status)
                    await supervisor.changed()
            finally:
                with contextlib.suppress(GenaiServerError):
                    await supervisor.command(EndServer())

    def _report(self, status: ServerStatus) -> bool:
        """Call `on_nothing_loaded` or `on_started` if `status` shows that the start of the server's engines is over.
        Returns whether it is over.
        """
        states = {engine.state for engine in status.engines}
        if status.no_model_loaded:
            self._on_nothing_loaded()
        elif EngineState.READY in states and EngineState.STARTING not in states:
            self._on_started(status)
        else:
            return False
        return True
