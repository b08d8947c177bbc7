"""Files of results survive the end of their process at any moment."""

import errno
import os
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from genai_server.batch_files.batch_lines import error_line, response_line
from genai_server.batch_files.result_file import ResultFile, first_other_line

LINES = [response_line("batch_req_1", "a", 200, "req-1", b"{}"), error_line("batch_req_2", "ä", "batch_expired", "x")]


def recovered(path: Path) -> list[str]:
    with closing(ResultFile(path)) as file:
        return [custom_id for custom_id, _ in file.recovered()]


@pytest.mark.parametrize("length", range(len(LINES[1])))
def test_an_incomplete_line_is_removed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "results"
    path.write_bytes(LINES[0] + LINES[1][:length])
    assert recovered(path) == ["a"]
    assert path.read_bytes() == LINES[0]
    with closing(ResultFile(path)) as file:
        list(file.recovered())
        file.append(LINES[1])
        assert file.size == path.stat().st_size
    assert recovered(path) == ["a", "ä"]


@pytest.mark.parametrize("damage", [b"\x00" * 10 + b"\n", b"{}\n", b'{"custom_id": "a"}\n', b"[" * 5000 + b"\n"])
def test_lines_behind_a_damaged_one_are_removed(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "results"
    path.write_bytes(LINES[0] + damage + LINES[1])
    assert recovered(path) == ["a"]
    assert path.read_bytes() == LINES[0]


def test_lines_that_cannot_be_written_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results"
    with closing(ResultFile(path)) as file:
        file.append(LINES[0])

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            file.append(LINES[1])
        monkeypatch.undo()
        assert path.read_bytes() == LINES[0]
        file.append(LINES[1])
    assert path.read_bytes() == LINES[0] + LINES[1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_the_user_can_read_results(tmp_path: Path) -> None:
    ResultFile(tmp_path / "results").close()
    assert stat.S_IMODE(os.stat(tmp_path / "results").st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"", None),
        (LINES[0] + LINES[1], None),
        (LINES[0] + LINES[1][:9], None),
        (LINES[0] + LINES[1][:-1], None),
        (LINES[0] + b"notes\n", 2),
        (LINES[0] + b"notes", 2),
        (b'{"custom_id": "a"}\n' + LINES[0], 1),
    ],
)
def test_a_line_that_is_no_result_is_found(tmp_path: Path, content: bytes, number: int | None) -> None:
    path = tmp_path / "results"
    path.write_bytes(content)
    assert first_other_line(path) == number
