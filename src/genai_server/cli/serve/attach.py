"""Attaches an API process to the supervisor of its server, and starts that if there is none."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
from filelock import FileLock

from genai_server.apis.app import Attachment
from genai_server.child_process import group_signals_blocked
from genai_server.config.settings import Settings
from genai_server.messages.supervisor import SupervisorAddress, read_address
from genai_server.runtime_folder import open_runtime_folder, parent_of_workers
from genai_server.supervisor.engine_process import in_words
from genai_server.supervisor.process import LOCK, SupervisorLaunch

# Seconds in which a supervisor says where it is.
_START_TIMEOUT = 60.0
_LOOK_EVERY = 0.01
# Seconds after a failed start.
_PAUSE = 5.0

log = logging.getLogger(__name__)
# The supervisors that this process has started, which may outlive it; kept for their exit statuses.
_started: list["subprocess.Popen[bytes]"] = []


def attachment(settings: Settings) -> Attachment:
    """The attachment of this process to the supervisor that all workers of its parent share, or to one of its own."""
    parent = parent_of_workers()
    first = os.getpid() if parent is None else parent
    find = partial(find_or_start, settings, first)

    def stop_server() -> None:
        # As an operator would. A worker alone would be replaced.
        if parent is None:
            signal.raise_signal(signal.SIGTERM)
        else:
            os.kill(parent, signal.SIGTERM)

    return Attachment(open_runtime_folder(first), find, stop_server)


def find_or_start(settings: Settings, first: int) -> SupervisorAddress:
    """Where the supervisor of the server with this first process listens; starts it if there is none.

    Raises OSError if it cannot be started, and ConfigurationError without a folder for it.
    """
    while True:
        folder = open_runtime_folder(first)
        with contextlib.suppress(FileNotFoundError), FileLock(folder / LOCK, mode=0o600):
            if not _listens(folder):
                _start(SupervisorLaunch(str(folder), settings.model_dump(mode="json"), first))
            return read_address(folder)
        # The supervisor has just removed the folder.


def _listens(folder: Path) -> bool:
    """Whether a supervisor accepts connections."""
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


def _start(launch: SupervisorLaunch) -> None:
    """Start a supervisor, and wait until it listens. Raises OSError."""
    command = [sys.executable, "-m", "genai_server.supervisor.process"]
    with group_signals_blocked():
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr)
    _started.append(process)
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(msgspec.json.encode(launch))
    end = time.monotonic() + _START_TIMEOUT
    while not _listens(Path(launch.folder)):
        if (status := process.poll()) is not None:
            _fail(f"the supervisor ended while it started, {in_words(status)}")
        if time.monotonic() > end:
            process.kill()
            _fail(f"the supervisor has not started within {_START_TIMEOUT:g} s")
        time.sleep(_LOOK_EVERY)


def _fail(reason: str) -> NoReturn:
    """Report a supervisor that does not start, and wait before the next attempt. Raises OSError."""
    log.error("%s; it is started again in %g s", reason, _PAUSE)
    time.sleep(_PAUSE)
    raise OSError(reason)
