"""The supervisor's notice board: a small file that API processes read to find the models and their engines."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from genai_server.generation import Adapter

_NAME = "board.json"
_TRIES, _PAUSE = 20, 0.005

T = TypeVar("T")


class EngineStatus(Struct, frozen=True):
    """One engine as its supervisor sees it; `state` is starting, ready, restarting, unloading, failed or stopped.

    It runs the model of this name and serial. `since` is when the state began, in seconds of the epoch. With `hung` it
    has not ended a step in time: it is killed, or was, and none is ready since.
    """

    device: str
    state: str
    pid: int | None = None
    restarts: int = 0
    address: str = ""
    error: str | None = None
    model: str = ""
    serial: int = 0
    since: float = 0.0
    hung: bool = False


class ModelStatus(Struct, frozen=True):
    """One model that is served, with an engine on each of `devices` unless `state` is unloaded.

    `state` is loading, ready, unloading, unloaded or failed. `serial` is new whenever the directory is named anew. With
    `on_demand` requests have it loaded, and wait for that; one that is `leaving` is not served any more. `created`
    counts the seconds of the epoch. Requests may choose one of `adapters`.
    """

    name: str
    path: str
    devices: list[str]
    serial: int
    state: str
    created: int
    aliases: list[str] = []
    on_demand: bool = False
    leaving: bool = False
    adapters: list[Adapter] = []


class Board(Struct, frozen=True):
    """What the supervisor publishes for the API processes; a file that only the server's user can read.

    The first of `models` is for requests that name none. `control` is where the supervisor takes commands.
    """

    secret: str
    engines: list[EngineStatus]
    models: list[ModelStatus] = []
    control: str = ""


def write_board(folder: Path, board: Board) -> None:
    """Replace the board; a reader sees the old or the new one, never a part."""
    new = folder / f"{_NAME}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(board))
    _persistently(lambda: new.replace(folder / _NAME))


def read_board(folder: Path) -> Board:
    """The board now; an empty one if the supervisor has left."""
    try:
        return msgspec.json.decode(_persistently((folder / _NAME).read_bytes), type=Board)
    except FileNotFoundError:
        return Board("", [])


class BoardReader:
    """The board of a folder, read anew only once it was replaced: to ask is cheap enough for every request."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _NAME
        self._folder = folder
        self._seen: tuple[int, int, int] | None = None
        self._board = Board("", [])

    def read(self) -> Board:
        """The board now, the same object as before if it is the same board."""
        try:
            stat = self._file.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except OSError:
            seen = None
        if seen is None or seen != self._seen:
            self._board = read_board(self._folder)
            self._seen = seen
        return self._board


def _persistently(act: Callable[[], T]) -> T:
    """Windows lets nobody replace a file while another reads it, or read it while it is replaced: for a moment."""
    for _ in range(_TRIES):
        try:
            return act()
        except PermissionError:
            time.sleep(_PAUSE)
    return act()
