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


def read(path: Path, content: bytes, limit: int = LIMIT, endpoint: str | None = None) -> list[BatchLine | LineError]:
    path.write_bytes(content)
    with closing(LineReader(path, limit, endpoint)) as reader:
        return [found for part in reader.parts() for found in part]


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


def test_a_line_without_end_is_read_past(tmp_path: Path) -> None:
    long = b"x" * (3 * 256 * 1024) + b"\n"
    found = read(tmp_path / "input", jsonl([line("a")]) + long + jsonl([line("b")]) + long[:-1])
    assert [each.number for each in found] == [1, 2, 3, 4]
    assert [each.code for each in found if isinstance(each, LineError)] == ["line_too_long"] * 2


def test_a_byte_order_mark_and_windows_line_ends_are_no_errors(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + jsonl([line("a"), line("b")]).replace(b"\n", b"\r\n")
    found = read(tmp_path / "input", content)
    assert [each.custom_id for each in found if isinstance(each, BatchLine)] == ["a", "b"]


@pytest.mark.parametrize("blank", [b"\n" * 600_000, b" " * 600_000 + b"\n"])
def test_many_blank_lines_end_no_file(tmp_path: Path, blank: bytes) -> None:
    found = read(tmp_path / "input", blank + jsonl([line("a")]) + blank + jsonl([line("b")]), limit=1_000_000)
    assert [each.custom_id for each in found if isinstance(each, BatchLine)] == ["a", "b"]


def test_deep_nesting_is_an_error_of_its_line(tmp_path: Path) -> None:
    deep = b'{"custom_id": "a", "body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    (first, second) = read(tmp_path / "input", deep + jsonl([line("b")]), limit=1_000_000)
    assert isinstance(first, LineError)
    assert isinstance(second, BatchLine)


def test_without_an_endpoint_a_line_names_any_of_them(tmp_path: Path) -> None:
    found = read(tmp_path / "input", jsonl([line("a", url="/v1/responses"), line("b", url="/v1/files")]))
    assert isinstance(found[0], BatchLine)
    assert isinstance(found[1], LineError)
    assert (found[1].code, found[1].param) == ("invalid_url", "url")


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
