"""Arguments of tool calls that models write without quotes: converts them to JSON according to the parameter's schema.

Where the schema allows strings, a text stays a string, unless it is JSON of another type that the schema also allows:
with the types `["string", "null"]`, `null` is null and `5` is "5". A schema without a type allows everything.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.answers.json_text import is_json
from genai_server.text.answers.python_literal import to_json
from genai_server.text.grammars.grammar_cost import target
from genai_server.text.tool_formats.tool_format import write_json

TEXT = "string"
_TYPES = frozenset({TEXT, "integer", "number", "boolean", "null", "object", "array"})
_BY_BEGINNING = {"{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null", '"': TEXT}
# Maximum nesting of schemas.
_DEPTH = 16
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "$comment"}


def meant(text: str, schema: Any, whole: Mapping[str, Any]) -> str:
    """Convert an unquoted text to the JSON text of a value of `schema`, which is a part of the schema `whole`."""
    types = types_of(schema, whole)
    if types == {TEXT}:
        return write_json(text)
    if TEXT not in types:
        value = to_json(text.strip())
        return write_json(text) if value is None else value
    others = types - {TEXT} | ({"integer"} if "number" in types else set())
    stripped = text.strip()
    return stripped if is_json(stripped) and _type_of(stripped) in others else write_json(text)


def types_of(schema: Any, whole: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that values of `schema`, a part of the schema `whole`, may have."""
    return _types_of(schema, whole, {}, _DEPTH)


def _types_of(schema: Any, whole: Mapping[str, Any], known: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    """Return the JSON types that values of `schema` may have.

    `known` holds the types of references that have been followed, so that each is followed once. At `depth` 0, all
    types are returned.
    """
    if not isinstance(schema, Mapping) or not depth:
        return _TYPES
    options = [_TYPES]
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in known:
            known[reference] = _TYPES  # within itself it says nothing
            with suppress(InvalidField):
                known[reference] = _types_of(target(whole, reference), whole, known, depth - 1)
        options.append(known[reference])
    if (names := schema.get("type")) is not None:
        options.append(frozenset(kind for kind in _TYPES if kind in (names if isinstance(names, list) else [names])))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        options.append(frozenset(_type_of(json.dumps(value)) for value in values))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list):
            options.append(frozenset[str]().union(*(_types_of(each, whole, known, depth - 1) for each in branches)))
    if isinstance(parts := schema.get("allOf"), list):
        options += [_types_of(part, whole, known, depth - 1) for part in parts]
    return reduce(_joined, options) or _TYPES


def is_any_text(schema: Any) -> bool:
    """Whether every unquoted text, converted by `meant`, matches this schema. The schema must allow strings."""
    if not isinstance(schema, Mapping) or schema.keys() - _ANNOTATIONS - {"type", "anyOf"}:
        return schema is True
    return all(map(is_any_text, schema.get("anyOf", [])))


def texts_of(schema: Any) -> list[str] | None:
    """Return the values of a schema that enumerates them, as models write them without quotes; None for other
    schemas.
    """
    if not isinstance(schema, Mapping) or schema.keys() - _ANNOTATIONS - {"type", "enum", "const"}:
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or {"enum", "const"} <= schema.keys():
        return None
    return [bare(value) for value in values]


def bare(value: Any) -> str:
    """Return a value as models write it: a string without quotes, any other value as JSON."""
    return value if isinstance(value, str) else write_json(value)


def _type_of(value: str) -> str:
    """Return the JSON type (such as `integer` or `object`) of a value that is given as JSON text."""
    number = "number" if any(char in value for char in ".eE") else "integer"
    return _BY_BEGINNING.get(value[0], number)


def _joined(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Return the intersection of two sets of JSON types. Every integer is also a number."""
    both = one & other
    if any("integer" in a and "number" in b for a, b in ((one, other), (other, one))):
        both |= {"integer"}
    return both
