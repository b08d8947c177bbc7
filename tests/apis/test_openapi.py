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


@pytest.fixture(scope="module")
def schemas(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"]
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


def test_a_schemas_title_is_its_name(schemas: dict[str, Any]) -> None:
    assert len(schemas) > 100
    assert {name: schema["title"] for name, schema in schemas.items() if schema["title"] != name} == {}


def test_class_names_of_schemas_are_unique(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    answers = [answer for one in _operations(document) for answer in one["responses"].values()]
    contents = [content for answer in answers for content in answer.get("content", {}).values()]
    inline = [one["title"] for content in contents for one in _within(content.get("schema")) if "title" in one]
    assert _repeated([*(schema["title"] for schema in schemas.values()), *inline]) == []


def test_every_object_with_fields_has_a_name(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    parts = [*schemas.values(), *_operations(document)]
    within = [schema for part in parts for schema in _within(part) if schema is not part]
    assert [schema for schema in within if isinstance(schema.get("properties"), dict)] == []


def test_operations_have_the_names_of_their_functions(document: dict[str, Any]) -> None:
    found = document["paths"]
    assert found["/v1/responses/{response_id}"]["delete"]["operationId"] == "delete_response"
    for path, name in (
        ("/v1/chat/completions", "create_chat_completion"),
        ("/v1/tokenize", "tokenize"),
        ("/tokenize", "tokenize_without_version"),
        ("/v1/chat", "chat"),
        ("/api/chat", "ollama_chat"),
    ):
        assert found[path]["post"]["operationId"] == name
    ids = [operation["operationId"] for operation in _operations(document)]
    assert _repeated(ids) == []
    assert [id for id in ids if not re.fullmatch("[a-z]+[a-z0-9]*(_[a-z0-9]+)*", id)] == []
    assert max(map(len, ids)) < 40


def test_every_enum_has_a_name(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    assert len([schema for schema in schemas.values() if "enum" in schema]) > 30
    # The type of an item of another provider is everything but these.
    others = schemas["ForeignItem"]["properties"]["type"]["not"]
    assert "message" in others["enum"]
    parts = [schema for schema in schemas.values() if "enum" not in schema]
    nameless = [one for one in _within([*parts, *_operations(document)]) if len(one.get("enum", [])) > 1]
    assert nameless == [others]


def test_fields_with_the_same_values_share_an_enum(schemas: dict[str, Any]) -> None:
    assert schemas["ReasoningEffort"]["enum"] == ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    reference = {"$ref": "#/components/schemas/ReasoningEffort"}
    assert reference in schemas["ChatCompletionRequest"]["properties"]["reasoning_effort"]["anyOf"]
    assert reference in schemas["ReasoningConfig"]["properties"]["effort"]["anyOf"]
    assert schemas["ChatMessage"]["properties"]["role"]["$ref"].endswith("/ChatMessageRole")
    values = Counter(tuple(schema["enum"]) for schema in schemas.values() if "enum" in schema)
    assert [value for value, times in values.items() if times > 2] == []


def test_each_operation_describes_its_answer(document: dict[str, Any]) -> None:
    without = [one["operationId"] for one in _operations(document) if not one["responses"]["200"].get("content")]
    assert without == []
