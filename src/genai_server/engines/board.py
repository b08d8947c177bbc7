"""The supervisor's notice board: a small file that API processes read to find the engines."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from genai_server.messages import Board

_NAME = "board.json"
_TRIES, _PAUSE = 20, 0.005

T = TypeVar("T")


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


def _persistently(act: Callable[[], T]) -> T:
    """Windows lets nobody replace a file while another reads it, or read it while it is replaced: for a moment."""
    for _ in range(_TRIES):
        try:
            return act()
        except PermissionError:
            time.sleep(_PAUSE)
    return act()
