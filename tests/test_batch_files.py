"""Lines of batch files are checked, and results survive the end of their process."""

import errno
import os
import stat
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from genai_server.batch_files import (
    BatchLine,
    LineError,
    LineReader,
    ResultFile,
    error_line,
    first_invalid_line,
    response_line,
)
from tests.apis.batches.inputs import jsonl, line

LIMIT = 1000


def read(path: Path, content: bytes, limit: int = LIMIT) -> list[BatchLine | LineError]:
    path.write_bytes(content)
    with closing(LineReader(path, limit, None)) as reader:
        return [found for part in reader.parts() for found in part]


def names(found: list[BatchLine | LineError]) -> list[str | None]:
    """The ids of valid lines, and the codes of errors."""
    return [each.custom_id if isinstance(each, BatchLine) else each.code for each in found]


def test_a_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(jsonl(line(f"{number}") for number in range(1000)))
    with closing(LineReader(path, LIMIT)) as reader:
        sizes = [len(part) for part in reader.parts()]
    assert sum(sizes) == 1000
    assert max(sizes) <= 256


def test_a_body_is_passed_on_as_it_was_written(tmp_path: Path) -> None:
    head = '{"custom_id": "ä", "method": "POST", "url": "/v1/completions"'
    text = head + ', "body": { "prompt":"\\u00e4" , "x": 1.0 } , "other": []}'
    (found,) = read(tmp_path / "input", text.encode())
    assert isinstance(found, BatchLine)
    assert (found.number, found.custom_id, found.url, found.model) == (1, "ä", "/v1/completions", None)
    assert found.body == b'{ "prompt":"\\u00e4" , "x": 1.0 }'


A, B = jsonl([line("a")]), jsonl([line("b")])
LONG = b"x" * (3 * 256 * 1024) + b"\n"
DEEP = b'{"custom_id": "a", "body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
URLS = jsonl([line("a", url="/v1/responses"), line("b", url="/v1/files")])


@pytest.mark.parametrize(
    ("content", "limit", "expected"),
    [
        (A + LONG + B + LONG[:-1], LIMIT, ["a", "line_too_long", "b", "line_too_long"]),
        (b"\xef\xbb\xbf" + (A + B).replace(b"\n", b"\r\n"), LIMIT, ["a", "b"]),
        *((blank + A + blank + B, 1_000_000, ["a", "b"]) for blank in (b"\n" * 600_000, b" " * 600_000 + b"\n")),
        (DEEP + B, 1_000_000, ["invalid_json_line", "b"]),
        (URLS, LIMIT, ["a", "invalid_url"]),
    ],
    ids=["without end", "Windows", "blank", "spaces", "deep", "no endpoint"],
)
def test_a_wrong_line_does_not_end_the_file(tmp_path: Path, content: bytes, limit: int, expected: list[str]) -> None:
    assert names(read(tmp_path / "input", content, limit)) == expected


@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b'{"a": 1', b'{"a": "\xff"}', b"{} {}"])
def test_a_response_that_is_not_json_has_no_line(body: bytes) -> None:
    with pytest.raises(ValueError, match="JSON|truncated|utf-8"):
        response_line("batch_req_1", "a", 502, "req-1", body)


def test_a_response_of_several_lines_becomes_one() -> None:
    text = response_line("batch_req_1", "a", 200, "req-1", b'{\n "a": [1.0,\n "\\n\xc3\xa4"]}\n')
    assert text.count(b"\n") == 1
    assert msgspec.json.decode(text)["response"]["body"] == {"a": [1.0, "\nä"]}


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
    assert first_invalid_line(path) == number
