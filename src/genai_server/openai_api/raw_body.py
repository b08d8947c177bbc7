"""Changes to a body before its fields are checked. In a path such as `tools[].name`, `[]` stands for each element."""

from collections.abc import Iterator, Mapping
from typing import Any

from genai_server.openai_api.schemas.base import JsonObject


def objects_at(body: Any, path: str) -> Iterator[tuple[str, JsonObject]]:
    """The objects at a path, each with its place, such as `tools[3]`; the body itself at the empty path."""
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
                if isinstance(element, dict)  # a body may have 50,000 objects, but many more other values
            ]
    yield from ((place, value) for place, value in found if isinstance(value, dict))


def remove(body: Any, path: str) -> Iterator[str]:
    """Remove a field wherever it is given and not null; returns the places."""
    parent, _, field = path.rpartition(".")
    for place, value in objects_at(body, parent):
        if value.pop(field, None) is not None:
            yield f"{place}.{field}".removeprefix(".")


def replace_media(body: Any, path: str, kinds: Mapping[str, str], text_type: str) -> Iterator[str]:
    """Replace the parts at a path whose type is in `kinds` by a text that says what was there; returns the places."""
    for place, part in objects_at(body, path):
        kind = part.get("type")
        if isinstance(kind, str) and kind in kinds:
            part.clear()
            part.update(type=text_type, text=f"[{kinds[kind]} left out: this model reads text only]")
            yield f"{place} ({kinds[kind]})"
