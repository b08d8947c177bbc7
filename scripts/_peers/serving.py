"""Runs a peer's server for as long as it is measured."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from _load.server import HOST, clean_environment

from .environment import PeerUnavailable
from .peer import Launch

_SECONDS_TO_START = 600.0
_SECONDS_TO_STOP = 45.0
_LAST = 300


@contextmanager
def served(launch: Launch, folder: Path) -> Iterator[str]:
    """Start the server on a free port of loopback and give its URL. Its log goes to the folder.

    Raises PeerUnavailable, with the end of the log, if it does not start.
    """
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    log = folder / "server.log"
    environment = clean_environment() | dict(launch.environment)
    with log.open("wb") as file:
        # A session of its own, so that its other processes end with it.
        process = subprocess.Popen(
            launch.command(port), env=environment, stdout=file, stderr=file, start_new_session=True
        )
    url = f"http://{HOST}:{port}"
    try:
        end = time.monotonic() + _SECONDS_TO_START
        while not _is_ready(url + launch.ready_path):
            if process.poll() is not None or time.monotonic() > end:
                said = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                raise PeerUnavailable(f"its server does not start: {said[-_LAST:]} ({log})")
            time.sleep(0.2)
        yield url
    finally:
        _stop(process)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url, timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
