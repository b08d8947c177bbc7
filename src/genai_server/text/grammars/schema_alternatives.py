"""Determines whether a value can match more than one of several schemas."""

from collections.abc import Hashable, Sequence
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.grammars.grammar_cost import target

_ALL_TYPES = ("array", "boolean", "null", "number", "object", "string")
# Maximum length of a chain of references.
_DEEPEST = 20


def are_disjoint(branches: Sequence[Any], whole: dict[str, Any]) -> bool:
    """Whether no value fits two of these schemas, as far as their types, their values, or the values of a property show
    that all of their objects require. References are to parts of `whole`.
    """
    found = [_meant(branch, whole) for branch in branches]
    values = [_values(branch) for branch in found]
    if all(one is not None for one in values):
        return _all_differ([value for one in values for value in one or ()])
    objects = [branch for branch in found if isinstance(branch, dict) and branch.get("type") == "object"]
    marks: list[Hashable] = [mark for branch in found if branch not in objects for mark in _types(branch)]
    if len(objects) == 1:
        marks.append("object")
    elif objects:
        told_by = next((key for key in _required(objects[0]) if _tells_apart(key, objects)), None)
        if told_by is None:
            return False
        marks.append("object")
    return _all_differ(marks)


def _meant(branch: Any, whole: dict[str, Any]) -> Any:
    """The schema that a branch refers to, if the branch is only a reference."""
    for _ in range(_DEEPEST):
        if not isinstance(branch, dict) or set(branch) != {"$ref"} or not isinstance(branch["$ref"], str):
            return branch
        try:
            branch = target(whole, branch["$ref"])
        except InvalidField:
            return {}
    return {}


def _values(branch: Any) -> list[Hashable] | None:
    """The values that may match a schema, in comparable form; None if unlimited."""
    if not isinstance(branch, dict):
        return None
    given = [branch["const"]] if "const" in branch else branch.get("enum")
    return [_comparable(value) for value in given] if isinstance(given, list) else None


def _comparable(value: Any) -> Hashable:
    """A form that compares equal as in JSON schema: 1 equals 1.0, but not true."""
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, dict):
        return frozenset((key, _comparable(inner)) for key, inner in value.items())
    return (bool, value) if isinstance(value, bool) else value


def _types(branch: Any) -> Sequence[str]:
    """The types of values that may match a schema; every integer is a number."""
    if branch is False:
        return ()
    given = branch.get("type", _ALL_TYPES) if isinstance(branch, dict) else _ALL_TYPES
    kinds = [given] if isinstance(given, str) else given
    return sorted({"number" if kind == "integer" else str(kind) for kind in kinds})


def _required(branch: dict[str, Any]) -> list[str]:
    """The properties that an object must have."""
    required = branch.get("required", [])
    return [key for key in required if isinstance(key, str)] if isinstance(required, list) else []


def _tells_apart(key: str, objects: Sequence[dict[str, Any]]) -> bool:
    """Whether all objects require a property whose values are disjoint between the schemas."""
    found: list[Hashable] = []
    for branch in objects:
        properties = branch.get("properties")
        values = _values(properties.get(key)) if isinstance(properties, dict) else None
        if values is None or key not in _required(branch):
            return False
        found += values
    return _all_differ(found)


def _all_differ(values: Sequence[Hashable]) -> bool:
    return len(set(values)) == len(values)
