"""The notice board: what is written is what is read, and only the server's user can."""

import stat
import sys
from pathlib import Path

import pytest

from genai_server.engines.board import Board, BoardReader, EngineStatus, read_board, write_board

BOARD = Board(
    "secret", [EngineStatus("cpu", "ready", 123, 1, "/tmp/cpu.sock"), EngineStatus("cuda:1", "failed", error="né")]
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    write_board(tmp_path, BOARD)
    assert read_board(tmp_path) == BOARD


def test_a_new_board_replaces_the_old_one_wholly(tmp_path: Path) -> None:
    write_board(tmp_path, BOARD)
    write_board(tmp_path, Board("s", []))
    assert read_board(tmp_path) == Board("s", [])
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_dying_writer_left_behind_is_no_board(tmp_path: Path) -> None:
    write_board(tmp_path, BOARD)
    name = next(tmp_path.iterdir()).name
    (tmp_path / f"{name}.new").write_bytes(b'{"secret": "half, and longer than the next one will ever be' * 50)
    assert read_board(tmp_path) == BOARD
    write_board(tmp_path, Board("s", []))
    assert read_board(tmp_path) == Board("s", [])


@pytest.mark.parametrize("folder", [".", "gone"])
def test_without_a_board_nothing_runs(tmp_path: Path, folder: str) -> None:
    assert read_board(tmp_path / folder) == Board("", [])


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_only_the_servers_user_can_read_the_secret(tmp_path: Path) -> None:
    write_board(tmp_path, BOARD)
    write_board(tmp_path, BOARD)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]


def test_a_reader_sees_every_new_board_and_reads_none_twice(tmp_path: Path) -> None:
    reader = BoardReader(tmp_path)
    assert reader.read() == Board("", [])
    write_board(tmp_path, BOARD)
    first = reader.read()
    assert first == BOARD
    assert reader.read() is first
    write_board(tmp_path, Board("s", []))
    assert reader.read() == Board("s", [])
