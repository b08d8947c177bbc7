"""Which schemas exclude each other."""

from typing import Any

import pytest

from genai_server.text.grammars.schema_alternatives import are_disjoint


def kind(*values: str, required: bool = True) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {"kind": {"enum": list(values)}, "other": {}}}
    return {**schema, "required": ["other", "kind"]} if required else schema


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "string"}, {"type": ["integer", "null"]}],
        [{"const": 1}, {"const": True}, {"enum": ["a", [1]]}],
        [kind("a"), kind("b", "c")],
        [kind("a"), kind("b"), {"type": "null"}, False],
        [{"$ref": "#/$defs/a"}, kind("b")],
        [{"type": "object"}, {"type": "array"}],
    ],
)
def test_branches_with_different_types_or_values_are_disjoint(branches: list[Any]) -> None:
    assert are_disjoint(branches, {"$defs": {"a": kind("a")}})


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"const": 1}, {"const": 1.0}],
        [{"enum": [{"a": [1]}]}, {"const": {"a": [1.0]}}],
        [kind("a"), kind("a", "b")],
        [kind("a"), kind("b", required=False)],
        [kind("a"), {"type": "object"}],
        [kind("a"), {}],
        [{"const": "a"}, {"type": "string"}],
        [{"$ref": "#/$defs/none"}, {"type": "null"}],
        [{"$ref": "#/$defs/loop"}, {"type": "null"}],
        [True, {"type": "null"}],
    ],
)
def test_other_branches_are_not_called_disjoint(branches: list[Any]) -> None:
    assert not are_disjoint(branches, {"$defs": {"loop": {"$ref": "#/$defs/loop"}}})
