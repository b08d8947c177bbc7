"""The lines of a batch, read from files of any length."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from genai_server.batch_files.batch_lines import BatchLine, LineError, LineReader, response_line
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
