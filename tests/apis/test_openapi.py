"""/openapi.json as client generators read it: each name that becomes a class occurs once."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running_server import RunningServer

# Schema keywords whose values map names to schemas.
_NAMED = ("properties", "$defs", "patternProperties")
_METHODS = ("get", "post", "delete", "put", "patch")


@pytest.fixture(scope="module")
def document(scripted: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = scripted.client.get("/openapi.json").json()
    return found


def _within(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas within it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _within(each)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            yield from _within(list(value.values()) if key in _NAMED else value)


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [path[method] for path in document["paths"].values() for method in _METHODS if method in path]


def _class_name(title: str) -> str:
    """The name as generators compare it: without case, spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", title.lower())


def _repeated(names: list[str]) -> list[str]:
    return [name for name, times in Counter(map(_class_name, names)).items() if times > 1]


def test_a_schemas_title_is_its_name(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert len(schemas) > 100
    assert {name: schema["title"] for name, schema in schemas.items() if schema["title"] != name} == {}


def test_class_names_of_schemas_are_unique(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    bodies = [
        body["content"] for one in _operations(document) for body in one["responses"].values() if "content" in body
    ]
    inline = [
        schema["title"]
        for body in bodies
        for content in body.values()
        for schema in _within(content.get("schema"))
        if "title" in schema
    ]
    assert _repeated([*(schema["title"] for schema in schemas.values()), *inline]) == []


def test_every_object_with_fields_has_a_name(document: dict[str, Any]) -> None:
    parts = [*document["components"]["schemas"].values(), *_operations(document)]
    nameless = [
        schema
        for part in parts
        for schema in _within(part)
        if isinstance(schema.get("properties"), dict) and schema is not part
    ]
    assert nameless == []


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    assert _repeated([operation["operationId"] for operation in _operations(document)]) == []


def test_each_operation_describes_its_answer(document: dict[str, Any]) -> None:
    without = [one["operationId"] for one in _operations(document) if not one["responses"]["200"].get("content")]
    assert without == []
