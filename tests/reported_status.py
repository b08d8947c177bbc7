"""A supervisor's end of the connections to API processes, which reports what a test says."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from genai_server.messages.server_status import ServerStatus
from genai_server.messages.supervisor_protocol import Command
from genai_server.supervisor.server import SupervisorServer
from genai_server.workers.pool import WorkerLimits, WorkerPool

SECRET = "secret"


@contextmanager
def reporting(
    folder: Path, status: ServerStatus, execute: Callable[[Command], None] = lambda command: None
) -> Iterator[SupervisorServer]:
    """Serve API processes in a folder, whose path must be short enough for a Unix socket."""
    with closing(SupervisorServer(folder, SECRET, lambda: WorkerPool(WorkerLimits()), execute)) as server:
        server.publish(status)
        yield server
