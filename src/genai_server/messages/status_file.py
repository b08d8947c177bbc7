"""The status file, in which the supervisor publishes models and engines for the API processes."""

import contextlib
import os
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from genai_server.messages.generation_request import Adapter
from genai_server.pooling_model import Task
from genai_server.vision_model import Medium

_NAME = "status.json"
# The alias for all names that no model has.
ANY_NAME = "*"
_TRIES, _PAUSE = 20, 0.005

T = TypeVar("T")


class EngineState(StrEnum):
    """The state of an engine's process."""

    # It is loading its model for the first time.
    STARTING = "starting"
    READY = "ready"
    # It has died; the next process waits or loads.
    RESTARTING = "restarting"
    # It accepts no new requests, and ends after the running ones.
    UNLOADING = "unloading"
    # Its model is not loaded, so there is no process.
    UNLOADED = "unloaded"
    # It could not load, or has died too often; there is no next process.
    FAILED = "failed"
    STOPPED = "stopped"


class ModelState(StrEnum):
    """The state of a model, with all of its engines taken together."""

    LOADING = "loading"
    # At least one engine is ready.
    READY = "ready"
    UNLOADING = "unloading"
    UNLOADED = "unloaded"
    # All of its engines have failed.
    FAILED = "failed"


class EngineStatus(Struct, frozen=True):
    """One engine as its supervisor reports it."""

    device: str
    state: EngineState
    pid: int | None = None
    # How often its process was restarted.
    restarts: int = 0
    # Where it listens; "" while it does not.
    address: str = ""
    # The last error.
    error: str | None = None
    # Name and serial of its model.
    model: str = ""
    serial: int = 0
    # When the state began, in seconds since 1970.
    since: float = 0.0
    # Whether it was killed because a step took too long, and has not been ready since.
    hung: bool = False
    # Maximum number of tokens of prompt and answer together, and what sets it; 0 until it has loaded.
    max_length: int = 0
    limited_by: str = ""


class ModelStatus(Struct, frozen=True):
    """One model that is served, with an engine on each of `devices` unless it is unloaded."""

    name: str
    path: str
    devices: list[str]
    # Changes whenever the name gets a directory.
    serial: int
    state: ModelState
    # In seconds since 1970.
    created: int
    aliases: list[str] = []
    # Whether it is loaded when a request names it.
    on_demand: bool = False
    # Whether it is being removed.
    leaving: bool = False
    # The adapters that requests may choose.
    adapters: list[Adapter] = []
    # A file or a name, in place of the model's own; "" for the model's own.
    chat_template: str = ""
    # The directory of its draft model; "" for none.
    draft_model: str = ""
    task: Task = Task.GENERATE
    # What it takes besides text, in chats.
    medium: Medium | None = None
    # Seconds without a request after which it is unloaded; None for never.
    idle_unload: float | None = None
    # Why there is no memory for it now, with the figures; "" unless a request waits for it.
    shortage: str = ""
    # Whether there would be none without the other models, either.
    is_too_large: bool = False


class ServerStatus(Struct, frozen=True):
    """What the supervisor publishes for the API processes; a file that only the server's user can read."""

    # API processes show it to engines and supervisor; "" once the supervisor has ended.
    secret: str
    engines: list[EngineStatus]
    # The first one is for requests that name no model.
    models: list[ModelStatus] = []
    # Where the supervisor receives commands.
    control: str = ""
    # Where the worker pool takes tasks.
    workers: str = ""


def write_status_file(folder: Path, server_status: ServerStatus) -> None:
    """Replace the file. A reader sees the old file or the new one, never a part."""
    new = folder / f"{_NAME}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(server_status))
    _persistently(lambda: new.replace(folder / _NAME))


def read_status_file(folder: Path) -> ServerStatus:
    """The status now; an empty one if the supervisor has ended."""
    try:
        return msgspec.json.decode(_persistently((folder / _NAME).read_bytes), type=ServerStatus)
    except FileNotFoundError:
        return ServerStatus("", [])


class StatusFileReader:
    """Reads the status file of a folder, and again only when it was replaced: a call costs one `stat`. Thread-safe.

    While the file cannot be read, such as without free file descriptors, the last status remains valid.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Identity and content of the last file, replaced together: no thread sees one without the other.
        self._last: tuple[tuple[int, int, int] | None, ServerStatus] = (None, ServerStatus("", []))

    def read(self) -> ServerStatus:
        """The status now; the same object as before if the file was not replaced."""
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
    """Retry for a moment: on Windows a file cannot be replaced while it is read, nor read while it is replaced."""
    for _ in range(_TRIES):
        try:
            return act()
        except PermissionError:
            time.sleep(_PAUSE)
    return act()
