"""Keywords that are rewritten for the compiler, and those that are refused."""

from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.grammars import grammar
from tests.text.guided import fits, validate


def taken(schema: dict[str, Any]) -> str:
    built = grammar.json_schema(schema)
    validate(built, param="response_format")
    return built


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
    assert fits(taken({"type": "object", "properties": {"x": schema}}), '{"x": 1}')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strin"}, 'type must be one of array, .*; given "strin"'),
        ({"type": ["string", {}]}, "type must be one of"),
        ({"required": True}, 'required must be a list of keys; given "True"'),
        ({"format": "password", "type": "string"}, 'format must be one of date, .*; given "password"'),
        ({"dependencies": {"a": {"required": ["b"]}}}, "only have lists of keys"),
        ({"dependentRequired": {str(n): ["a"] for n in range(5)}}, r"at most 4 keys .* given 5"),
        ({"oneOf": [{"type": "object"}, {"required": ["a"]}]}, "oneOf must differ"),
    ],
)
def test_refusal_names_what_is_possible(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        grammar.json_schema(schema)


@pytest.mark.parametrize("keyword", ["dependencies", "dependentRequired"])
def test_a_key_that_needs_others_comes_with_them_or_not_at_all(keyword: str) -> None:
    integer = {"type": "integer"}
    built = taken(
        {
            "type": "object",
            "properties": {"a": integer, "b": integer, "c": integer},
            keyword: {"a": ["b"], "c": []},
            "additionalProperties": False,
        }
    )
    for good in ("{}", '{"b": 1}', '{"a": 1, "b": 2}', '{"c": 3}'):
        assert fits(built, good), good
    for bad in ('{"a": 1}', '{"a": 1, "c": 3}'):
        assert not fits(built, bad), bad


def test_one_of_schemas_that_exclude_each_other_is_any_of_them() -> None:
    cat = {
        "type": "object",
        "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
        "required": ["kind"],
    }
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]}
    built = taken({"oneOf": [cat, {"$ref": "#/$defs/dog"}, {"type": "null"}], "$defs": {"dog": dog}})
    assert fits(built, '{"kind": "cat", "lives": 9}')
    assert fits(built, '{"kind": "dog", "name": "x"}')
    assert fits(built, "null")
    assert not fits(built, '{"kind": "fox"}')
    both = taken({"oneOf": [{"const": "a"}, {"const": "b"}], "anyOf": [{"const": "b"}, {"const": "c"}]})
    assert fits(both, '"b"')
    assert not fits(both, '"a"')


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("url", "https://example.org/a", "no url"),
        ("uuid4", "12345678-1234-4234-9234-123456789abc", "12345678-1234-1234-9234-123456789abc"),
        ("json-pointer", "/a~1b/0", "a"),
        ("idn-email", "a@example.org", "a"),
    ],
)
def test_formats_of_other_names_are_known(name: str, good: str, bad: str) -> None:
    built = taken({"type": "string", "format": name})
    assert fits(built, f'"{good}"')
    assert not fits(built, f'"{bad}"')
