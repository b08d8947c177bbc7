"""Formats of schemas, where the library alone would allow invalid values."""

import json
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.grammars import grammar
from genai_server.text.grammars.json_schema import are_disjoint
from tests.text.guided import assert_answers, fits, followed

LONG = "a" * 64


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (
            "date",
            ["2024-02-29", "2000-02-29", "2023-02-28", "0001-01-01", "1990-12-31"],
            ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "2024-13-01"],
        ),
        ("time", ["23:59:59Z", "00:00:00.123+02:00", "01:02:03z"], ["23:59:60Z", "24:00:00Z", "12:00:00"]),
        ("date-time", ["2024-02-29T23:59:59.5-08:00"], ["2023-02-29T00:00:00Z", "2024-02-29T00:00:60Z"]),
        (
            "hostname",
            ["example.com", "a", "a-b.c", "a--b.c", "ab-c", LONG[1:]],
            ["ab--c", "xn--x", f"{LONG}.com", "-a", "a-", ".".join([LONG[1:]] * 4)],
        ),
        (
            "email",
            ["first.last+x@example.com", f"{LONG[1:]}@example.com", "a@b", "ab.c@mail.eu.example.co.uk"],
            [f"{LONG}a@example.com", f"a@{'.'.join([LONG[1:]] * 4)}", f"a@{LONG}.com", "a@b@c", ".a@b.c", "a"],
        ),
    ],
)
@pytest.mark.parametrize("more", [{}, {"pattern": "[A-Za-z0-9]$"}, {"allOf": [{"minLength": 1}]}, {"maxLength": 200}])
def test_a_format_is_what_its_standard_says(
    format: str, good: list[str], bad: list[str], more: dict[str, object]
) -> None:
    built = followed({"type": ["string", "null"], "format": format, **more})
    assert_answers(built, ["null", *map(json.dumps, good)], map(json.dumps, bad))


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("contains", {"const": 1}),
        ("dependentSchemas", {"a": {"required": ["b"]}}),
        ("if", {"required": ["a"]}),
        ("not", {"type": "string"}),
        ("propertyNames", {"pattern": "^a"}),
        ("unevaluatedItems", False),
        ("unevaluatedProperties", False),
        ("uniqueItems", True),
    ],
)
def test_unsupported_keyword_is_refused_by_name(keyword: str, value: Any) -> None:
    schema = {keyword: value, "then": {"required": ["b"]}}
    with pytest.raises(InvalidField, match=f"must not use the keyword {keyword}, which"):
        grammar.json_schema({"properties": {"x": schema}})


@pytest.mark.parametrize(
    "schema",
    [
        {"if": {"required": ["a"]}},
        {"then": {"required": ["a"]}, "else": {"required": ["b"]}},
        {"uniqueItems": False},
        {"propertyNames": {"type": "string"}},
        {"minContains": 2},
        {"type": "number", "format": "float"},
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_keywords_that_restrict_nothing_are_accepted(schema: dict[str, Any]) -> None:
    assert fits(followed({"type": "object", "properties": {"x": schema}}), '{"x": 1}')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strin"}, 'type must be one of array, .*; given "strin"'),
        ({"type": ["string", {}]}, "type must be one of"),
        ({"required": True}, 'required must be a list of keys; given "True"'),
        ({"dependencies": None}, 'dependencies must be an object; given "None"'),
        ({"dependentRequired": "a"}, 'dependentRequired must be an object; given "a"'),
        ({"format": "password", "type": "string"}, 'format must be one of date, .*; given "password"'),
        ({"dependencies": {"a": {"required": ["b"]}}}, "only have lists of keys"),
        ({"dependentRequired": {str(n): ["a"] for n in range(5)}}, r"at most 4 keys .* given 5"),
        ({"oneOf": [{"type": "object"}, {"required": ["a"]}]}, "oneOf must differ"),
    ],
)
def test_refusal_names_what_is_possible(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        grammar.json_schema(schema)


INTEGER = {"type": "integer"}
CAT, DOG = (
    {"type": "object", "properties": {"kind": {"const": kind}, "name": {"type": "string"}}, "required": ["kind"]}
    for kind in ("cat", "dog")
)
THREE = {"type": "object", "properties": dict.fromkeys("abc", INTEGER), "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "string", "format": "email", "pattern": "example\\.com$"},
            ['"a@example.com"'],
            ['"a@example.com.org"'],
        ),
        (
            {"type": "string", "format": "hostname", "pattern": "example\\.com$"},
            ['"example.com"'],
            ['"example.com.org"'],
        ),
        # A key that requires others comes with them or not at all.
        *(
            (
                {**THREE, keyword: {"a": ["b"], "c": []}},
                ["{}", '{"b": 1}', '{"a": 1, "b": 2}', '{"c": 3}'],
                ['{"a": 1}', '{"a": 1, "c": 3}'],
            )
            for keyword in ("dependencies", "dependentRequired")
        ),
        # One of schemas that exclude each other is any of them.
        (
            {"oneOf": [CAT, {"$ref": "#/$defs/dog"}, {"type": "null"}], "$defs": {"dog": DOG}},
            ['{"kind": "cat", "name": "x"}', '{"kind": "dog", "name": "x"}', "null"],
            ['{"kind": "fox"}'],
        ),
        ({"oneOf": [{"const": "a"}, {"const": "b"}], "anyOf": [{"const": "b"}, {"const": "c"}]}, ['"b"'], ['"a"']),
        ({"type": "string", "format": "url"}, ['"https://example.org/a"'], ['"no url"']),
        (
            {"type": "string", "format": "uuid4"},
            ['"12345678-1234-4234-9234-123456789abc"'],
            ['"12345678-1234-1234-9234-123456789abc"'],
        ),
        ({"type": "string", "format": "json-pointer"}, ['"/a~1b/0"'], ['"a"']),
        ({"type": "string", "format": "idn-email"}, ['"a@example.org"'], ['"a"']),
    ],
)
def test_keywords_are_followed(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert_answers(followed(schema), good, bad)


def kind(*values: str, required: bool = True) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {"kind": {"enum": list(values)}, "other": {}}}
    return {**schema, "required": ["other", "kind"]} if required else schema


DEFINITIONS = {"a": kind("a"), "loop": {"$ref": "#/$defs/loop"}}


@pytest.mark.parametrize(
    ("are", "branches"),
    [
        (True, [{"type": "string"}, {"type": ["integer", "null"]}]),
        (True, [{"const": 1}, {"const": True}, {"enum": ["a", [1]]}]),
        (True, [kind("a"), kind("b", "c")]),
        (True, [kind("a"), kind("b"), {"type": "null"}, False]),
        (True, [{"$ref": "#/$defs/a"}, kind("b")]),
        (True, [{"type": "object"}, {"type": "array"}]),
        (False, [{"type": "integer"}, {"type": "number"}]),
        (False, [{"const": 1}, {"const": 1.0}]),
        (False, [{"enum": [{"a": [1]}]}, {"const": {"a": [1.0]}}]),
        (False, [kind("a"), kind("a", "b")]),
        (False, [kind("a"), kind("b", required=False)]),
        (False, [kind("a"), {"type": "object"}]),
        (False, [kind("a"), {}]),
        (False, [{"const": "a"}, {"type": "string"}]),
        (False, [{"$ref": "#/$defs/none"}, {"type": "null"}]),
        (False, [{"$ref": "#/$defs/loop"}, {"type": "null"}]),
        (False, [True, {"type": "null"}]),
    ],
)
def test_branches_with_different_types_or_values_are_disjoint(are: bool, branches: list[Any]) -> None:
    assert are_disjoint(branches, {"$defs": DEFINITIONS}) is are
