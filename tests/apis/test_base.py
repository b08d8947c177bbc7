"""Rules for the bodies of all endpoints: validation of an invalid body ends early."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from genai_server.apis import app
from genai_server.generation.parameters.base import StrictModel, elements, members


class Inner(StrictModel):
    number: int


class Body(StrictModel):
    numbers: Annotated[list[int], elements(1000, min_length=1)] = [1]
    inner: Annotated[list[Inner], elements(1000)] | None = None
    weights: Annotated[dict[str, float], Field(max_length=3), members(3)] | None = None
    schema_: str = Field("", alias="schema")


def _findings(**fields: Any) -> list[tuple[str, tuple[int | str, ...]]]:
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(fields)
    return [(finding["type"], finding["loc"]) for finding in caught.value.errors()]


def _bodies(parent: type[StrictModel]) -> Iterator[type[StrictModel]]:
    for child in parent.__subclasses__():
        if child.__module__.startswith("genai_server."):
            yield child
        yield from _bodies(child)


def _collections(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All lists and objects of free names in a core schema, with their places and the checks that precede them."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "set", "frozenset", "generator", "dict"):
            yield path, schema
        if schema.get("type") == "function-before":
            path += f".<{schema['function']['function'].__qualname__}>"
        for name, inner in schema.items():
            yield from _collections(inner, f"{path}.{name}") if name != "metadata" else ()
    elif isinstance(schema, list | tuple):
        for index, inner in enumerate(schema):
            yield from _collections(inner, f"{path}[{index}]")


def test_every_list_in_a_body_has_a_limit_and_fails_fast() -> None:
    assert app.__name__  # imports the models of all bodies
    bodies = set(_bodies(StrictModel))
    lists = [found for body in bodies for found in _collections(body.__pydantic_core_schema__, body.__name__)]
    lists = [(path, schema) for path, schema in lists if schema["type"] != "dict"]
    assert len(lists) > 20
    assert [path for path, schema in lists if "max_length" not in schema or not schema.get("fail_fast")] == []


def test_every_checked_object_has_a_limit_that_is_checked_first() -> None:
    bodies = set(_bodies(StrictModel))
    found = [found for body in bodies for found in _collections(body.__pydantic_core_schema__, body.__name__)]
    checked = {
        path: schema for path, schema in found if schema["type"] == "dict" and schema["values_schema"]["type"] != "any"
    }
    assert checked
    assert [path for path, schema in checked.items() if "max_length" not in schema or "<members." not in path] == []


def test_long_list_is_refused_with_its_first_wrong_element() -> None:
    assert _findings(numbers=["x"] * 900) == [("int_type", ("numbers", 0))]
    assert _findings(inner=[{"number": 1}, {}, {}]) == [("missing", ("inner", 1, "number"))]


def test_many_unknown_fields_are_refused_with_the_first() -> None:
    unknown = {f"x{n}": 1 for n in range(1000)}
    assert _findings(numbers=[1], schema="x", **unknown) == [("extra_forbidden", ("x0",))]
    assert _findings(inner=[{"number": 1, **unknown}]) == [("extra_forbidden", ("inner", 0, "x0"))]


def test_members_of_an_object_are_counted_before_validation() -> None:
    assert _findings(weights={f"x{n}": "?" for n in range(4)}) == [("too_long", ("weights",))]
    assert _findings(weights={"x": "?"}) == [("float_type", ("weights", "x"))]
    assert Body.model_validate({"weights": {"x": 1.0}}).weights == {"x": 1.0}
