"""The notice board: what is written is what is read, and only the server's user can."""

import stat
import sys
from pathlib import Path

import pytest

from genai_server.messages.status_file import (
    EngineState,
    EngineStatus,
    ServerStatus,
    StatusFileReader,
    read_status_file,
    write_status_file,
)

BOARD = ServerStatus(
    "secret",
    [
        EngineStatus("cpu", EngineState.READY, 123, 1, "/tmp/cpu.sock"),
        EngineStatus("cuda:1", EngineState.FAILED, error="né"),
    ],
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    assert read_status_file(tmp_path) == BOARD


def test_a_new_board_replaces_the_old_one_wholly(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    write_status_file(tmp_path, ServerStatus("s", []))
    assert read_status_file(tmp_path) == ServerStatus("s", [])
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_dying_writer_left_behind_is_no_board(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    name = next(tmp_path.iterdir()).name
    (tmp_path / f"{name}.new").write_bytes(b'{"secret": "half, and longer than the next one will ever be' * 50)
    assert read_status_file(tmp_path) == BOARD
    write_status_file(tmp_path, ServerStatus("s", []))
    assert read_status_file(tmp_path) == ServerStatus("s", [])


@pytest.mark.parametrize("folder", [".", "gone"])
def test_without_a_board_nothing_runs(tmp_path: Path, folder: str) -> None:
    assert read_status_file(tmp_path / folder) == ServerStatus("", [])


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_only_the_servers_user_can_read_the_secret(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    write_status_file(tmp_path, BOARD)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]


def test_a_reader_sees_every_new_board_and_reads_none_twice(tmp_path: Path) -> None:
    reader = StatusFileReader(tmp_path)
    assert reader.read() == ServerStatus("", [])
    write_status_file(tmp_path, BOARD)
    first = reader.read()
    assert first == BOARD
    assert reader.read() is first
    write_status_file(tmp_path, ServerStatus("s", []))
    assert reader.read() == ServerStatus("s", [])


def test_a_board_that_cannot_be_read_is_what_it_was_until_it_can(tmp_path: Path) -> None:
    reader = StatusFileReader(tmp_path)
    write_status_file(tmp_path, BOARD)
    assert reader.read() == BOARD
    file = next(tmp_path.iterdir())
    file.unlink()
    file.mkdir()  # not even root can read it
    assert reader.read() == BOARD
    file.rmdir()
    write_status_file(tmp_path, ServerStatus("s", []))
    assert reader.read() == ServerStatus("s", [])
