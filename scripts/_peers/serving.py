"""Runs a peer's server for as long as it is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _load.server import HOST, DoesNotStart, clean_environment, free_port, is_answered, running

from .environment import PeerUnavailable, end_of
from .peer import Launch

_SECONDS_TO_START = 600.0


@contextmanager
def served(launch: Launch, folder: Path) -> Iterator[str]:
    """Start the server on a free loopback port and yield its URL. Its log goes to the folder.

    Raises PeerUnavailable, with the end of the log, if it does not start.
    """
    port = free_port()
    url = f"http://{HOST}:{port}"
    log = folder / "server.log"
    environment = clean_environment() | dict(launch.environment)
    try:
        with running(
            launch.command(port), environment, log, lambda: is_answered(url + launch.ready_path), _SECONDS_TO_START
        ):
            yield url
    except DoesNotStart:
        raise PeerUnavailable(f"its server does not start: {end_of(log)}") from None
