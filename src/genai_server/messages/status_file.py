"""The status file: the supervisor writes into it which models and engines there are, and API processes read it."""

import contextlib
import os
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from genai_server.generation import Adapter

_NAME = "status.json"
_TRIES, _PAUSE = 20, 0.005

T = TypeVar("T")


class EngineState(StrEnum):
    """What an engine's process is doing."""

    # It loads its model for the first time.
    STARTING = "starting"
    READY = "ready"
    # It has died; the next process waits or loads.
    RESTARTING = "restarting"
    # It takes no more requests and ends once those that run have ended.
    UNLOADING = "unloading"
    # Its model is not loaded, so that there is no process.
    UNLOADED = "unloaded"
    # It could not load, or has died too often; there is no next process.
    FAILED = "failed"
    STOPPED = "stopped"


class ModelState(StrEnum):
    """Whether a model can be used, with all of its engines taken together."""

    LOADING = "loading"
    # At least one engine is.
    READY = "ready"
    UNLOADING = "unloading"
    UNLOADED = "unloaded"
    # All of its engines have failed.
    FAILED = "failed"


class EngineStatus(Struct, frozen=True):
    """One engine as its supervisor sees it."""

    device: str
    state: EngineState
    pid: int | None = None
    # How often its process was started again.
    restarts: int = 0
    # Where it listens; "" while it does not.
    address: str = ""
    # What went wrong last.
    error: str | None = None
    # Name and serial of its model.
    model: str = ""
    serial: int = 0
    # When the state began, in seconds of the epoch.
    since: float = 0.0
    # It has not ended a step in time and is killed, or was, and none is ready since.
    hung: bool = False


class ModelStatus(Struct, frozen=True):
    """One model that is served, with an engine on each of `devices` unless it is unloaded."""

    name: str
    path: str
    devices: list[str]
    # New whenever the directory is named anew.
    serial: int
    state: ModelState
    # In seconds of the epoch.
    created: int
    aliases: list[str] = []
    # Requests have it loaded, and wait for that.
    on_demand: bool = False
    # It is not served any more.
    leaving: bool = False
    # Those that requests may choose.
    adapters: list[Adapter] = []
    # A file or a name, in place of the model's own; "" for the model's own.
    chat_template: str = ""


class ServerStatus(Struct, frozen=True):
    """What the supervisor publishes for the API processes; a file that only the server's user can read."""

    # What an API process proves to engines and supervisor that it belongs here; "" once the supervisor has left.
    secret: str
    engines: list[EngineStatus]
    # The first is for requests that name none.
    models: list[ModelStatus] = []
    # Where the supervisor takes commands.
    control: str = ""


def write_status_file(folder: Path, server_status: ServerStatus) -> None:
    """Replace the file; a reader sees the old or the new one, never a part."""
    new = folder / f"{_NAME}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(server_status))
    _persistently(lambda: new.replace(folder / _NAME))


def read_status_file(folder: Path) -> ServerStatus:
    """The status now; an empty one if the supervisor has left."""
    try:
        return msgspec.json.decode(_persistently((folder / _NAME).read_bytes), type=ServerStatus)
    except FileNotFoundError:
        return ServerStatus("", [])


class StatusFileReader:
    """The status file of a folder as one process sees it; any thread may read.

    The file is read anew only once it was replaced: to ask costs one `stat`. While it cannot be read, for want of
    files for one, the last status stands.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Which file was read, and what it said: replaced together, so that no thread sees one without the other.
        self._last: tuple[tuple[int, int, int] | None, ServerStatus] = (None, ServerStatus("", []))

    def read(self) -> ServerStatus:
        """The status now; the same object as before if the file is the same."""
        try:
            stat = (self._folder / _NAME).stat()
            found = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except OSError:
            found = None
        last = self._last
        if found is None or found != last[0]:
            with contextlib.suppress(OSError):
                last = self._last = (found, read_status_file(self._folder))
        return last[1]


def _persistently(act: Callable[[], T]) -> T:
    """Try again for a moment: Windows lets no process replace a file while another reads it, nor read it meanwhile."""
    for _ in range(_TRIES):
        try:
            return act()
        except PermissionError:
            time.sleep(_PAUSE)
    return act()
