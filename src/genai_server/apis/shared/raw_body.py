"""Edits to a body before validation. In a path such as `tools[].name`, `[]` stands for each element."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from genai_server.apis.shared.base import JsonObject


def objects_at(body: Any, path: str) -> Iterator[tuple[str, JsonObject]]:
    """The objects at a path, each with its location, such as `tools[3]`. The empty path is the body itself."""
    found = [("", body)]
    for part in path.split(".") if path else []:
        field = part.removesuffix("[]")
        found = [
            (f"{place}.{field}".removeprefix("."), value[field])
            for place, value in found
            if isinstance(value, dict) and field in value
        ]
        if part.endswith("[]"):
            found = [
                (f"{place}[{index}]", element)
                for place, value in found
                if isinstance(value, list)
                for index, element in enumerate(value)
                if isinstance(
                    element, dict
                )  # a body is limited to 50,000 objects; lists may hold many more other values
            ]
    yield from ((place, value) for place, value in found if isinstance(value, dict))


def remove(body: Any, path: str) -> Iterator[str]:
    """Remove a field wherever it is present and not null; yields the locations."""
    parent, _, field = path.rpartition(".")
    for place, value in objects_at(body, parent):
        if value.pop(field, None) is not None:
            yield f"{place}.{field}".removeprefix(".")


def remove_values(body: Any, table: Mapping[str, Collection[str]]) -> list[str]:
    """Remove each field of the table that has one of its values; returns the locations."""
    found: list[str] = []
    for path, values in table.items():
        parent, _, field = path.rpartition(".")
        if any(value.get(field) in values for _, value in objects_at(body, parent)):
            found += remove(body, path)
    return found


def remove_tools(body: Any, is_removed: Callable[[str], object]) -> list[str]:
    """Remove the tools whose type is one to be removed; returns the locations, each with the type."""
    found = {
        place: tool
        for place, tool in objects_at(body, "tools[]")
        if isinstance(tool.get("type"), str) and is_removed(tool["type"])
    }
    if found:
        removed = [id(tool) for tool in found.values()]
        body["tools"] = [tool for tool in body["tools"] if id(tool) not in removed]
    return [f"{place} ({tool['type']})" for place, tool in found.items()]


def replace_media(body: Any, path: str, kinds: Mapping[str, str], text_type: str) -> Iterator[str]:
    """Replace parts at a path whose type is in `kinds` by a text that names the medium; yields the locations."""
    for place, part in objects_at(body, path):
        kind = part.get("type")
        if isinstance(kind, str) and kind in kinds:
            part.clear()
            part.update(type=text_type, text=f"[{kinds[kind]} left out: this model reads text only]")
            yield f"{place} ({kinds[kind]})"
