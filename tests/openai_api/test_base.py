"""What holds for the bodies of all endpoints: how long a look at a wrong one is."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from genai_server.api import app
from genai_server.openai_api.schemas.base import Wire, elements, members


class Inner(Wire):
    number: int


class Body(Wire):
    numbers: Annotated[list[int], elements(1000, least=1)] = [1]
    inner: Annotated[list[Inner], elements(1000)] | None = None
    weights: Annotated[dict[str, float], Field(max_length=3), members(3)] | None = None
    schema_: str = Field("", alias="schema")


def _findings(**fields: Any) -> list[tuple[str, tuple[int | str, ...]]]:
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(fields)
    return [(finding["type"], finding["loc"]) for finding in caught.value.errors()]


def _bodies(parent: type[Wire]) -> Iterator[type[Wire]]:
    for child in parent.__subclasses__():
        if child.__module__.startswith("genai_server."):
            yield child
        yield from _bodies(child)


def _collections(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All lists and objects of free names in a core schema, with their places and what is asked before them."""
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


def test_every_list_of_every_body_has_a_limit_and_its_first_wrong_element_ends_the_look_at_it() -> None:
    assert app.__name__  # it imports all bodies that there are
    bodies = set(_bodies(Wire))
    lists = [found for body in bodies for found in _collections(body.__pydantic_core_schema__, body.__name__)]
    lists = [(path, schema) for path, schema in lists if schema["type"] != "dict"]
    assert len(lists) > 20
    assert [path for path, schema in lists if "max_length" not in schema or not schema.get("fail_fast")] == []


def test_every_object_of_free_names_whose_values_are_checked_has_a_limit_that_is_looked_at_first() -> None:
    bodies = set(_bodies(Wire))
    found = [found for body in bodies for found in _collections(body.__pydantic_core_schema__, body.__name__)]
    checked = {
        path: schema for path, schema in found if schema["type"] == "dict" and schema["values_schema"]["type"] != "any"
    }
    assert checked
    assert [path for path, schema in checked.items() if "max_length" not in schema or "<members." not in path] == []


def test_of_a_long_list_the_first_wrong_element_is_told() -> None:
    assert _findings(numbers=["x"] * 900) == [("int_type", ("numbers", 0))]
    assert _findings(inner=[{"number": 1}, {}, {}]) == [("missing", ("inner", 1, "number"))]


def test_of_thousands_of_unknown_fields_the_first_is_told() -> None:
    unknown = {f"x{n}": 1 for n in range(1000)}
    assert _findings(numbers=[1], schema="x", **unknown) == [("extra_forbidden", ("x0",))]
    assert _findings(inner=[{"number": 1, **unknown}]) == [("extra_forbidden", ("inner", 0, "x0"))]


def test_an_object_of_too_many_free_names_is_counted_before_it_is_looked_at() -> None:
    assert _findings(weights={f"x{n}": "?" for n in range(4)}) == [("too_long", ("weights",))]
    assert _findings(weights={"x": "?"}) == [("float_type", ("weights", "x"))]
    assert Body.model_validate({"weights": {"x": 1.0}}).weights == {"x": 1.0}
