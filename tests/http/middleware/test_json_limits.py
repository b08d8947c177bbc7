"""Limits that are checked before a JSON text is parsed."""

import json

import pytest

from genai_server.errors import MalformedBody, TooManyValues
from genai_server.http.error_responses import malformed
from genai_server.http.middleware.body import MAX_CONTAINERS, brackets_of, check_json, is_nested


@pytest.mark.parametrize(
    ("text", "nested"),
    [
        (b"[" * 101, True),
        (b"[" * 100 + b"]" * 100, False),
        (b"[" * 101 + b"]" * 101, True),
        (b'{"a":' * 60 + b"[" * 60, True),
        (b"[]" * 500_000, False),
        (b'["' + b"[" * 999 + b'"]', False),
        (b'["\\"' + b"[" * 999 + b'"]', False),
        (b'["\\\\"' + b"[" * 999, True),
        (b'"' + b"[" * 999, False),
        (b'"\\' + b"[" * 999, False),
        (b"[" * 99 + b"]" * 99 + b"[" * 99 + b"]" * 99, False),
        (b"]" * 200 + b"[" * 100, False),
        (("[" * 200 + "é" * 3).encode(), True),
    ],
    ids=range(13),
)
def test_the_depth_of_a_json_text_is_found_without_reading_it(text: bytes, nested: bool) -> None:
    assert is_nested(brackets_of(text), by_more_than=100) is nested


def test_lists_and_objects_are_counted_but_not_those_in_texts() -> None:
    most = MAX_CONTAINERS // 2
    check_json(b'["' + b"[" * 100_000 + b'",' + b"[{}]," * (most - 1) + b"0]")
    with pytest.raises(TooManyValues, match="at most 50000 lists and objects in all, given 50001"):
        check_json(b"[" + b"[{}]," * most + b"0]")


def test_invalid_utf8_is_reported_with_its_position() -> None:
    with pytest.raises(MalformedBody, match="not UTF-8: byte 0xff at 2, invalid start byte"):
        check_json(b'["\xff"]')


def test_why_a_text_cannot_be_read_is_said_in_the_words_of_json() -> None:
    said = []
    for text in ("[1,", "9" * 4400):
        with pytest.raises(ValueError) as caught:
            json.loads(text)
        said.append(malformed(caught.value).message)
    assert said[0] == "the body is not JSON: Expecting value at character 3"
    assert "exceeds the limit (4300 digits)" in said[1].lower()
    assert said[1].endswith("value has 4400 digits")
