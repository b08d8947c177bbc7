"""Changes to a body that is not validated yet."""

import tracemalloc
from typing import Any

import pytest

from genai_server.apis.shared.raw_body import objects_at, remove, replace_media


@pytest.mark.parametrize(
    ("path", "places"),
    [("", [""]), ("a", []), ("b", ["b"]), ("a[]", ["a[1]"]), ("a[].b", ["a[1].b"]), ("b[]", []), ("c.d", [])],
)
def test_a_path_leads_to_objects_and_skips_all_else(path: str, places: list[str]) -> None:
    body = {"a": [1, {"b": {"x": 1}}], "b": {"y": 2}, "c": 5}
    assert [place for place, _ in objects_at(body, path)] == places


def test_values_that_are_not_objects_are_skipped_cheaply() -> None:
    body = {"a": [{"b": ["x"] * 10_000}, {"b": []}]}
    tracemalloc.start()
    try:
        assert list(objects_at(body, "a[].b[]")) == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000


def test_removed_fields_are_named_unless_null() -> None:
    body: Any = {"a": [{"x": 0}, {"x": None}, {}], "x": 1}
    assert list(remove(body, "a[].x")) == ["a[0].x"]
    assert list(remove(body, "x")) == ["x"]
    assert body == {"a": [{}, {}, {}]}


def test_a_medium_becomes_a_text_that_says_so() -> None:
    body: Any = {"a": [{"type": "photo", "data": "AA=="}, {"type": "text"}]}
    assert list(replace_media(body, "a[]", {"photo": "image"}, "text")) == ["a[0] (image)"]
    assert body["a"] == [{"type": "text", "text": "[image left out: this model reads text only]"}, {"type": "text"}]
