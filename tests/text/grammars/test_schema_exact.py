"""The answers that a schema allows, where the library alone would allow more."""

import re
import subprocess
import sys
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.grammars import grammar
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tool_format import Tool
from tests.running_server import ROOT, clean_environment
from tests.text.guided import assert_answers, fits, followed


@pytest.mark.timeout(120)
def test_no_answer_drawn_at_random_breaks_its_schema() -> None:
    command = [sys.executable, "scripts/fuzz.py", "schemas", "--count", "120", "--walks", "3", "--seed", "1"]
    done = subprocess.run(
        [*command, "--processes", "1"], cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(r"answers that fit their schema +\d\d+\n", done.stdout)
    assert "broken promises: none" in done.stdout


def test_a_key_cannot_pass_for_another_by_escapes() -> None:
    built = followed({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert fits(built, '{"a": 1, "b": "x"}')
    assert not fits(built, '{"\\u0061": "x"}')
    call = '<tool_call>\n{"name": "f", "arguments": {"\\u0061": "x"}}\n</tool_call>'
    tool = Tool("f", {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True})
    forced = grammar.tool_calls(TOOL_FORMATS["hermes"], [tool], parallel=False, opaque_tokens={})
    assert fits(forced, call.replace('"\\u0061": "x"', '"a": 1, "b": "x"'))
    assert not fits(forced, call)


def test_annotations_and_names_may_have_any_characters() -> None:
    said = {"title": "Größe", "description": "é 漢字", "default": "ü", "examples": ["ß"], "$comment": "ñ"}
    city = {"type": "string", "enum": ["Köln", "東京"], **said}
    schema = {**said, "type": "object", "properties": {"Straße": city}, "propertyNames": {"type": "string"}}
    assert fits(followed(schema), '{"Straße": "東京"}')
    forced = grammar.tool_calls(TOOL_FORMATS["hermes"], [Tool("f", schema)], parallel=False, opaque_tokens={})
    grammar.check_size(forced, param="tools")
    assert fits(forced, '<tool_call>\n{"name": "f", "arguments": {"Straße": "Köln"}}\n</tool_call>')
    assert not fits(forced, '<tool_call>\n{"name": "f", "arguments": {"Straße": "Bonn"}}\n</tool_call>')


KEYWORDS = {"pattern": {"type": "string"}, "enum": {"type": "integer"}, "minimum": {"type": "null"}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # Properties may be named like annotations and other keywords.
        (
            {"type": "object", "properties": {"title": {"type": "integer"}}, "required": ["title"]},
            ['{"title": 1}'],
            ['{"title": "x"}'],
        ),
        (
            {"type": "object", "properties": KEYWORDS, "additionalProperties": False},
            ['{"pattern": "(", "enum": 1, "minimum": null}'],
            [],
        ),
        # Control characters are accepted except in keys.
        ({"enum": ["\x01", "\x7f"]}, ['"\\u0001"'], []),
        ({"type": "object", "minProperties": 2, "properties": {"a": {}}, "required": ["a"]}, [], []),
        ({"type": "object", "minProperties": 1}, [], []),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"const": 1}}}}, ["1"], []),
    ],
)
def test_schema_is_followed(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert_answers(followed(schema), good, bad)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "dependencies": {"title": {"required": ["a"]}}}, "dependencies"),
        ({"type": "object", "properties": {"a": {"const": "\x01"}}}, "control characters"),
        # Keys could coincide.
        ({"type": "object", "minProperties": 2}, "minProperties .*: 1; given 2"),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "additionalItems": False},
            "prefixItems and additionalItems",
        ),
        ({"$ref": "#/enum/0", "enum": [{"minimum": 5}]}, "refers to no schema"),
    ],
)
def test_schema_that_cannot_be_followed_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        followed(schema)


INT64 = {"minimum": -9223372036854775808, "maximum": 9223372036854775807}
# The forms of pydantic, zod 4, zod-to-json-schema, schemars and Java's generators (victools, Jackson).
WRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "pydantic": (
        {
            "$defs": {
                "Color": {"enum": ["red", "green"], "title": "Color", "type": "string"},
                "Item": {
                    "properties": {
                        "price": {"exclusiveMinimum": 0, "title": "Price", "type": "number"},
                        "tags": {"items": {"type": "string"}, "maxItems": 3, "title": "Tags", "type": "array"},
                        "color": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": None},
                    },
                    "required": ["price", "tags"],
                    "title": "Item",
                    "type": "object",
                },
            },
            "properties": {
                "id": {"format": "uuid", "title": "Id", "type": "string"},
                "at": {"format": "date-time", "title": "At", "type": "string"},
                "code": {"pattern": "^[A-Z]{2}\\d{3}$", "title": "Code", "type": "string"},
                "items": {"additionalProperties": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "object"},
            },
            "required": ["id", "at", "code", "items"],
            "title": "Order",
            "type": "object",
        },
        '{"id": "12345678-1234-1234-1234-123456789abc", "at": "2024-02-29T12:00:00Z", "code": "AB123", '
        '"items": {"x": {"price": 0.5, "tags": ["a"], "color": null}}}',
    ),
    "zod 4, schemars and Java's": (
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Config",
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
                "p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                "f": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
                "day": {"type": "string", "format": "date"},
                "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}]},
                "big": {"type": "integer", "format": "int64", **INT64},
                "size": {"type": "integer", "format": "uint64", "minimum": 0},
                "ratio": {"type": ["number", "null"], "format": "double"},
                "wide": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
                "at": {"type": ["string", "null"], "format": "time"},
                "shape": {
                    "oneOf": [
                        {"type": "string", "const": "Dot"},
                        {"type": "object", "properties": {"Box": {"type": "integer"}}, "required": ["Box"]},
                    ]
                },
            },
            "required": ["n", "p", "f", "day", "pair", "big", "size", "shape"],
            "additionalProperties": False,
        },
        '{"n": 9007199254740991, "p": 0.25, "f": -1.5, "day": "2023-12-31", "pair": ["a", null], '
        '"big": 9223372036854775807, "size": 18446744073709551615, "ratio": 1.5, "wide": -12.75, '
        '"at": "23:59:59+02:00", "shape": {"Box": 3}}',
    ),
    "zod-to-json-schema": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "mail": {"type": "string", "format": "email"},
                "pair": {"type": "array", "minItems": 2, "maxItems": 2, "items": [{"type": "string"}, {"const": 1}]},
                "kind": {"anyOf": [{"type": "string", "const": "a"}, {"type": "string", "const": "b"}]},
            },
            "required": ["mail", "pair", "kind"],
            "additionalProperties": False,
        },
        '{"mail": "first.last@example.com", "pair": ["a", 1], "kind": "b"}',
    ),
}


@pytest.mark.parametrize("generator", WRITTEN)
def test_schemas_as_generators_write_them_are_followed(generator: str) -> None:
    schema, answer = WRITTEN[generator]
    assert fits(followed(schema), answer)
