"""A schema as llguidance follows it exactly: another is written where it would allow more than the schema does."""

from collections.abc import Mapping
from typing import Any

from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted
from genai_server.text.grammars.schema_formats import FORMATS
from genai_server.text.grammars.schema_joins import target
from genai_server.text.grammars.schema_numbers import check_together, check_value, multiple, with_bounds_held
from genai_server.text.grammars.schema_patterns import has_property, translated

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_DATA = ("enum", "const", "required", "dependentRequired", "x-guidance")
# Annotations, which restrict nothing.
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
# Values of "propertyNames" that every object fits.
_ANY_NAMES: tuple[Any, ...] = ({}, True, {"type": "string"})


# What may stand behind a backslash in JSON. Without "u" a text has one form only; with it, a key of an object could
# pass for another than it is.
_ESCAPES = 'nrbtf\\"'


def exact(schema: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The schema with all that is rewritten, and the escapes that its texts may have, as llguidance's option.

    Raises InvalidField, which names no field of the request.
    """
    found = _Exact(dict(schema))
    return found.whole, _ESCAPES + ("u" if found.has_controls else "")


class _Exact:
    """One schema, and what is found in it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._visited: set[int] = set()
        self._references: list[str] = []
        self._multiples: set[tuple[int, int]] = set()
        self._joins = False
        self._is_open = False
        self.has_controls = False
        try:
            self.whole = self._rewritten(schema)
        except RecursionError:
            raise InvalidField("the schema is nested too deeply") from None
        for reference in self._references:
            if isinstance(found := target(schema, reference), dict) and id(found) not in self._visited:
                raise InvalidField(f"{quoted(reference)} refers to no schema")
        if self._joins:
            check_together(self._multiples)
        if self.has_controls and self._is_open:
            raise InvalidField(
                "texts in enum and const may have no control characters but \\b, \\t, \\n, \\f and \\r where an object "
                "may have keys beside those that the schema names; set additionalProperties to false"
            )

    def _inner(self, value: Any) -> Any:
        """Whatever stands below a word: a schema, or several."""
        if isinstance(value, dict):
            return self._rewritten(value)
        return [self._inner(item) for item in value] if isinstance(value, list) else value

    def _rewritten(self, schema: dict[str, Any]) -> dict[str, Any]:
        self._visited.add(id(schema))
        self._look(schema)
        written: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _ANNOTATIONS or (key == "propertyNames" and value in _ANY_NAMES):
                continue
            if key in _DATA:
                written[key] = value
            elif key in _MAPS and isinstance(value, dict):
                self._visited.add(id(value))
                written[key] = {name: self._inner(inner) for name, inner in value.items()}
            else:
                written[key] = self._inner(value)
        return _with_patterns(with_bounds_held(written))

    def _look(self, schema: dict[str, Any]) -> None:
        """Refuse what there is no other way to write, and note what must be seen together."""
        for key in ("enum", "const"):
            if key in schema:
                check_value(schema[key], key)
                self.has_controls |= _has_controls(schema[key])
        if (found := multiple(schema.get("multipleOf"))) is not None:
            self._multiples.add(found)
        if isinstance(schema.get("$ref"), str):
            self._references.append(schema["$ref"])
        self._joins |= any(key in schema for key in ("$ref", "allOf", "anyOf", "oneOf"))
        named = any(schema.get(key) for key in ("properties", "patternProperties", "required"))
        self._is_open |= named and schema.get("additionalProperties") is not False
        _check_keys(schema)
        if "prefixItems" in schema and "additionalItems" in schema:
            raise InvalidField("prefixItems and additionalItems are of different drafts of JSON schema; give items")


def _check_keys(schema: dict[str, Any]) -> None:
    """Nothing tells apart the keys of an object that its schema does not name."""
    least, required = schema.get("minProperties"), schema.get("required")
    if not isinstance(least, int) or (
        schema.get("additionalProperties") is False and "patternProperties" not in schema
    ):
        return
    most = 1 + (len(set(map(str, required))) if isinstance(required, list) else 0)
    if least > most:
        raise InvalidField(
            f"minProperties may be at most one more than the keys in required, unless additionalProperties is false: "
            f"{most}; given {least}"
        )


def _has_controls(value: Any) -> bool:
    """Whether there is a text in a value that JSON can write with \\u only."""
    if isinstance(value, str):
        return any((char < " " and char not in "\b\t\n\f\r") or char == "\x7f" for char in value)
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(map(_has_controls, inner))


def _with_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its patterns in the compiler's syntax, of which some are for its format."""
    written = dict(schema)
    if isinstance(schema.get("patternProperties"), dict):
        given = schema["patternProperties"]
        written["patternProperties"] = {translated(key): inner for key, inner in given.items()}
        if schema.get("additionalProperties") is not False and any(map(has_property, given)):
            raise InvalidField("patternProperties may have \\p and \\P only if additionalProperties is false")
        if len(written["patternProperties"]) < len(given):
            raise InvalidField("patternProperties has the same pattern twice")
    if isinstance(schema.get("pattern"), str):
        written["pattern"] = translated(schema["pattern"])
    found = FORMATS.get(schema["format"]) if isinstance(schema.get("format"), str) else None
    if found is not None:
        del written["format"]
        beside = written.get("allOf", [])
        if "pattern" not in written:
            written["pattern"] = found
        elif isinstance(beside, list):
            written["allOf"] = [*beside, {"pattern": found}]
    return written
