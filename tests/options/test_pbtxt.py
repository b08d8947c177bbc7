"""Protobuf's text format without a schema."""

import pytest

from genai_server.errors import ConfigurationError
from genai_server.options.pbtxt import read_pbtxt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name: "m"', {"name": ["m"]}),
        ("level : -1", {"level": ["-1"]}),
        ("kind: KIND_GPU # why", {"kind": ["KIND_GPU"]}),
        ("a { b: 1 }", {"a": [{"b": ["1"]}]}),
        ("a: < b: 1 >", {"a": [{"b": ["1"]}]}),
        ("a: [ 1, 2 ]", {"a": ["1", "2"]}),
        ("a: []", {"a": []}),
        ("a: [ { b: 1 }, { b: 2 } ]", {"a": [{"b": ["1"]}, {"b": ["2"]}]}),
        ("a: 1; a: 2, b: true", {"a": ["1", "2"], "b": ["true"]}),
        (r'a: "x\"\n" "y"', {"a": ['x"\ny']}),
        ("", {}),
    ],
)
def test_fields_are_read_whatever_they_are(text: str, expected: object) -> None:
    assert read_pbtxt(text, "c") == expected


@pytest.mark.parametrize(
    "text", ["a { b: 1 }}", "a {", "a: [1", "a 1", "a:", "1: a", 'a: "x', "a: }", "a: [ { b: 1 }", "a: [1 2]"]
)
def test_malformed_text_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^config.pbtxt:\d+:\d+ "):
        read_pbtxt(text, "config.pbtxt")
