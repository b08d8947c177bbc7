"""Values are quoted as JSON, and shortened."""

import json
from datetime import date

import pytest

from genai_server.errors import quoted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ("it's", '"it\'s"'),
        ('a "b"\n', r'"a \"b\"\n"'),
        ("Zürich", '"Zürich"'),
        ([True, {"a": None}], '[true, {"a": null}]'),
        (date(2026, 1, 2), '"2026-01-02"'),
    ],
)
def test_a_value_is_shown_as_json_writes_it(value: object, text: str) -> None:
    assert quoted(value) == text


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b", "\u202e", "\ud800", "\u2028"])
def test_terminal_control_characters_are_escaped(text: str) -> None:
    assert quoted(text).isprintable()
    assert json.loads(quoted(text)) == text


@pytest.mark.parametrize("value", ["x" * 101, ["x"] * 50])
def test_a_long_value_is_cut(value: object) -> None:
    assert len(quoted(value)) == 101
    assert quoted(value).endswith("…")
    assert not quoted(value, limit=1000).endswith("…")


def test_rest_of_a_long_value_is_not_read() -> None:
    class Never:
        def __str__(self) -> str:
            raise AssertionError

    assert quoted(["x" * 100, Never()]).endswith("…")
