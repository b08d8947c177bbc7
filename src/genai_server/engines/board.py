"""The supervisor's notice board: a small file that API processes read to find the engines."""

import os
from pathlib import Path

import msgspec

from genai_server.messages import Board

_NAME = "board.json"


def write_board(folder: Path, board: Board) -> None:
    """Replace the board; a reader sees the old or the new one, never a part."""
    new = folder / f"{_NAME}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(board))
    new.replace(folder / _NAME)


def read_board(folder: Path) -> Board:
    """The board now; an empty one if the supervisor has left."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=Board)
    except FileNotFoundError:
        return Board("", [])
