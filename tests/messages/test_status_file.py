"""The status file: read as written, and only by the server's user."""

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


def test_written_status_is_read_back(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    assert read_status_file(tmp_path) == BOARD


def test_new_status_replaces_the_old_one_completely(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    write_status_file(tmp_path, ServerStatus("s", []))
    assert read_status_file(tmp_path) == ServerStatus("s", [])
    assert len(list(tmp_path.iterdir())) == 1


def test_partial_status_of_a_dead_writer_is_ignored(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    name = next(tmp_path.iterdir()).name
    (tmp_path / f"{name}.new").write_bytes(b'{"secret": "half, and longer than the next one will ever be' * 50)
    assert read_status_file(tmp_path) == BOARD
    write_status_file(tmp_path, ServerStatus("s", []))
    assert read_status_file(tmp_path) == ServerStatus("s", [])


@pytest.mark.parametrize("folder", [".", "gone"])
def test_missing_status_file_means_nothing_runs(tmp_path: Path, folder: str) -> None:
    assert read_status_file(tmp_path / folder) == ServerStatus("", [])


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_secret_is_readable_only_by_the_servers_user(tmp_path: Path) -> None:
    write_status_file(tmp_path, BOARD)
    write_status_file(tmp_path, BOARD)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]


def test_reader_sees_every_new_status_once(tmp_path: Path) -> None:
    reader = StatusFileReader(tmp_path)
    assert reader.read() == ServerStatus("", [])
    write_status_file(tmp_path, BOARD)
    first = reader.read()
    assert first == BOARD
    assert reader.read() is first
    write_status_file(tmp_path, ServerStatus("s", []))
    assert reader.read() == ServerStatus("s", [])


def test_unreadable_status_keeps_its_last_value(tmp_path: Path) -> None:
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
