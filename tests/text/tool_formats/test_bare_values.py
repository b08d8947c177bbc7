"""The meaning of unquoted values by their schema."""

from typing import Any

import pytest

from genai_server.text.tool_formats.bare_values import is_any_text, meant, texts_of, types_of

OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, '"5"'),
        (' {"a": 1}\n', {"type": "string"}, '" {\\"a\\": 1}\\n"'),
        ("5", {"type": "integer"}, "5"),
        (" -2.5e3 ", {"type": "number"}, "-2.5e3"),
        ("True", {"type": "boolean"}, "true"),
        ("{'a': [1, None]}", {"type": "object"}, '{"a": [1, null]}'),
        ('["x",\n "y"]', {"type": "array"}, '["x",\n "y"]'),
        ("soon", {"type": "integer"}, '"soon"'),
        ("null", OPTIONAL, "null"),
        ("5", OPTIONAL, '"5"'),
        ("None", OPTIONAL, '"None"'),
        ("5", {"type": ["string", "number"]}, "5"),
        ("5.5", {"type": ["string", "integer"]}, '"5.5"'),
        ('"5"', {"type": ["string", "number"]}, '"\\"5\\""'),
        ("5", {"enum": ["5", "6"]}, '"5"'),
        ("6", {"enum": ["5", 6]}, "6"),
        ("5", {"const": 5}, "5"),
        ("5", {"$ref": "#/$defs/n"}, "5"),
        ("5", {"$ref": "#/$defs/none"}, "5"),
        ("5", {"allOf": [{"type": "string"}]}, '"5"'),
        ("5", {"allOf": [{"type": "number"}, {"type": "integer"}]}, "5"),
        ("5", True, "5"),
        ("five", {}, '"five"'),
        ("", {}, '""'),
        ("", {"type": "integer"}, '""'),
        ("NaN", {"type": "number"}, '"NaN"'),
        ("5", {"type": {"no": "type"}}, "5"),
        ("5", {"type": ["string", {}]}, '"5"'),
    ],
)
def test_a_text_stays_one_where_the_schema_allows_texts(text: str, schema: Any, value: str) -> None:
    assert meant(text, schema, {"$defs": {"n": {"type": "integer"}}}) == value


def test_references_in_a_circle_allow_everything() -> None:
    circle = {"$ref": "#/$defs/a"}
    assert "string" in types_of(circle, {"$defs": {"a": circle}})


@pytest.mark.timeout(120)
def test_a_reference_is_followed_once() -> None:
    """Following each reference separately would take 20 ** 7 steps; the test's time limit is what fails."""
    branches = {"anyOf": [{"$ref": "#/$defs/a"}, *[{"$ref": "#/$defs/b"}] * 20]}
    assert types_of(branches, {"$defs": {"a": {"type": "string"}, "b": branches}}) >= {"string", "null"}


@pytest.mark.parametrize(
    ("schema", "any_text"),
    [
        ({"type": "string", "description": "d"}, True),
        (OPTIONAL, True),
        (True, True),
        ({"type": "string", "maxLength": 3}, False),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}, False),
        ({"$ref": "#/$defs/n"}, False),
    ],
)
def test_a_schema_of_any_text_says_no_more_than_a_type(schema: Any, any_text: bool) -> None:
    assert is_any_text(schema) is any_text


def test_the_values_of_a_list_are_bare_too() -> None:
    assert texts_of({"enum": ["a", None, 1]}) == ["a", "null", "1"]
    assert texts_of({"type": "string", "const": "a"}) == ["a"]
    assert texts_of({"type": "string"}) is None
    assert texts_of({"enum": ["a"], "maxLength": 1}) is None
