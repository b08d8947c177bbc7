"""Removes from a schema what cannot be enforced exactly, for answers that need not match the whole schema."""

from collections.abc import Mapping, Set
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.grammars.grammar_cost import check_schema, target
from genai_server.text.grammars.schema_exact import exact, rewritten
from genai_server.text.grammars.schema_keywords import TYPES, Schema, any_of, keyword_steps, without_effect

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
    found = rewritten(relaxing.whole, relaxing.change)
    try:
        check_schema(found, param="")
        exact(found)
    except InvalidField:
        return any_value(schema), [EVERYTHING]
    return found, list(relaxing.left_out)


class _Relaxing:
    """Relaxes one schema and records the keywords that it leaves out."""

    def __init__(self, whole: Schema) -> None:
        self.whole = whole
        self.left_out: dict[str, None] = {}
        self._steps = [*keyword_steps(whole), (frozenset({"$ref"}), self._reference)]

    def change(self, _: Schema, written: Schema) -> Schema:
        """Return a schema without those of its keywords that cannot be enforced exactly."""
        written = without_effect(written)
        for words, step in self._steps:
            if found := words & written.keys():
                try:
                    step(written)
                except InvalidField:
                    if found & _NEVER_LEFT_OUT:
                        raise
                    written = self._without(written, found)
        return written

    def _reference(self, schema: Schema) -> Schema:
        if isinstance(schema["$ref"], str):
            target(self.whole, schema["$ref"])
        return schema

    def _without(self, schema: Schema, words: Set[str]) -> Schema:
        self.left_out.update(dict.fromkeys(sorted(words)))
        if words == {"oneOf"}:
            return any_of(schema)
        kept = {key: value for key, value in schema.items() if key not in words}
        return {**kept, "additionalProperties": True} if "patternProperties" in words else kept


def any_value(schema: Mapping[str, Any]) -> Schema:
    """Return a schema that only restricts the type of values to that of the given schema.

    Without a type, the result allows any object if the given schema has properties, and otherwise anything.
    """
    kind = schema.get("type", "object" if "properties" in schema else None)
    return {"type": kind} if kind in TYPES else {}
