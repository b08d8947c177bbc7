"""Rewrites a JSON schema so that llguidance enforces it exactly, where llguidance would otherwise allow more.

For answers that need not match the whole schema, `relaxed` first removes what cannot be enforced exactly.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any

from genai_server.errors import InvalidField, quoted
from genai_server.text.grammars.grammar_cost import check_schema, target
from genai_server.text.grammars.schema_keywords import TYPES, Schema, any_of, keyword_steps, without_effect
from genai_server.text.grammars.schema_numbers import check_together, multiple

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_DATA = ("enum", "const", "required", "dependentRequired", "x-guidance")

# What may follow a backslash in JSON. Without "u", a text has only one form; with it, an object's key could be
# disguised as another one.
_ESCAPES = 'nrbtf\\"'


def exact(schema: Mapping[str, Any]) -> tuple[Schema, str]:
    """Return the rewritten schema, and the JSON escapes that strings may contain (llguidance's `json_allowed_escapes`).

    Raises InvalidField, without the name of a field, for what cannot be enforced.
    """
    rewriting = _Exact(dict(schema))
    return rewriting.whole, _ESCAPES + ("u" if rewriting.has_controls else "")


def rewritten(schema: Schema, change: Callable[[Schema, Schema], Schema]) -> Schema:
    """Rewrite a schema bottom-up and return the result.

    Each schema is replaced by `change(original, copy in which the inner schemas are already rewritten)`. Raises
    InvalidField if the schema is nested too deeply.
    """
    try:
        return _rewritten(schema, change)
    except RecursionError:
        raise InvalidField(None, "the schema is nested too deeply") from None


def _rewritten(schema: Schema, change: Callable[[Schema, Schema], Schema]) -> Schema:
    written: Schema = {}
    for key, value in schema.items():
        if key in _DATA:
            written[key] = value
        elif key in _MAPS and isinstance(value, dict):
            written[key] = {name: _inner(inner, change) for name, inner in value.items()}
        else:
            written[key] = _inner(value, change)
    return change(schema, written)


def _inner(value: Any, change: Callable[[Schema, Schema], Schema]) -> Any:
    """Rewrite the value of a keyword if it is a schema or a list of schemas, and return it."""
    if isinstance(value, dict):
        return _rewritten(value, change)
    return [_inner(item, change) for item in value] if isinstance(value, list) else value


class _Exact:
    """Rewrites one schema for exact enforcement, and checks keywords that cannot be judged within a part of the schema.

    `whole` is the rewritten schema. The constructor raises InvalidField, without the name of a field.
    """

    def __init__(self, schema: Schema) -> None:
        self._visited: set[int] = set()
        self._references: list[str] = []
        self._multiples: set[tuple[int, int]] = set()
        self._joins = False
        self._is_open = False
        self.has_controls = False
        self._steps = keyword_steps(schema)
        self.whole = rewritten(schema, self._change)
        for reference in self._references:
            if isinstance(part := target(schema, reference), dict) and id(part) not in self._visited:
                raise InvalidField(None, f"{quoted(reference)} refers to no schema")
        if self._joins:
            check_together(self._multiples)
        if self.has_controls and self._is_open:
            raise InvalidField(
                None,
                "texts in enum and const may have no control characters but \\b, \\t, \\n, \\f and \\r where an "
                "object may have keys other than those named in the schema; set additionalProperties to false",
            )

    def _change(self, given: Schema, written: Schema) -> Schema:
        self._visited |= {id(given), *(id(given[key]) for key in _MAPS if key in given)}
        for words, step in self._steps:
            if not words.isdisjoint(written):
                written = step(written)
        self._record(written)
        return written

    def _record(self, schema: Schema) -> None:
        """Record properties of a part of the schema that matter for the schema as a whole. The constructor checks them
        at the end.

        They are control characters in texts, `multipleOf` values, references, and objects that allow keys which the
        schema does not name.
        """
        self.has_controls |= any(_has_controls(schema[key]) for key in ("enum", "const") if key in schema)
        if (factor := multiple(schema.get("multipleOf"))) is not None:
            self._multiples.add(factor)
        if isinstance(schema.get("$ref"), str):
            self._references.append(schema["$ref"])
        self._joins |= any(key in schema for key in ("$ref", "allOf", "anyOf", "oneOf"))
        named = any(schema.get(key) for key in ("properties", "patternProperties", "required"))
        self._is_open |= named and schema.get("additionalProperties") is not False


def _has_controls(value: Any) -> bool:
    r"""Whether a value contains a control character that JSON can only write with \u."""
    if isinstance(value, str):
        return any((char < " " and char not in "\b\t\n\f\r") or char == "\x7f" for char in value)
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(map(_has_controls, inner))


# Wrong values of these are mistakes, and nothing that a grammar cannot say.
_NEVER_LEFT_OUT = frozenset({"type", "required"})
# Stands for the schema as a whole among the keywords that are left out.
EVERYTHING = "the schema as a whole"


def relaxed(schema: Mapping[str, Any]) -> tuple[Schema, list[str]]:
    """Return a schema that can be enforced exactly and that every value of the given schema matches.

    Also returns the keywords that were left out. Raises InvalidField, without the name of a field, for an invalid
    schema.
    """
    relaxing = _Relaxing(dict(schema))
    result = rewritten(relaxing.whole, relaxing.change)
    try:
        check_schema(result, param="")
        exact(result)
    except InvalidField:
        return any_value(schema), [EVERYTHING]
    return result, list(relaxing.left_out)


class _Relaxing:
    """Relaxes one schema: leaves out keywords that cannot be enforced exactly, and records these in `left_out`."""

    def __init__(self, whole: Schema) -> None:
        self.whole = whole
        self.left_out: dict[str, None] = {}
        self._steps = [*keyword_steps(whole), (frozenset({"$ref"}), self._reference)]

    def change(self, _: Schema, written: Schema) -> Schema:
        """Return the schema `written`, whose inner schemas are already relaxed, without keywords that cannot be
        enforced exactly.
        """
        written = without_effect(written)
        for words, step in self._steps:
            if keywords := words & written.keys():
                try:
                    step(written)
                except InvalidField:
                    if keywords & _NEVER_LEFT_OUT:
                        raise
                    written = self._without(written, keywords)
        return written

    def _reference(self, schema: Schema) -> Schema:
        if isinstance(schema["$ref"], str):
            target(self.whole, schema["$ref"])
        return schema

    def _without(self, schema: Schema, words: Set[str]) -> Schema:
        self.left_out.update(dict.fromkeys(sorted(words)))
        if words == {"oneOf"}:
            return any_of(schema)
        others = {key: value for key, value in schema.items() if key not in words}
        return {**others, "additionalProperties": True} if "patternProperties" in words else others


def any_value(schema: Mapping[str, Any]) -> Schema:
    """Return a schema that only restricts the type of values to that of the given schema.

    Without a type, the result allows any object if the given schema has properties, and otherwise anything.
    """
    kind = schema.get("type", "object" if "properties" in schema else None)
    return {"type": kind} if kind in TYPES else {}
