"""Bodies that are one long list, or one object of many fields, wherever a server's description allows either."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

# Most are invalid in most places.
_SMALL: tuple[Any, ...] = (
    *({}, [], "", "x", -1, 1, 0.5, None, True, [[]]),
    *({"type": "text"}, {"role": "user"}, {"type": "message", "role": "user", "content": "x"}),
)
# In bytes; the largest is a server's limit.
_SIZES = (20_000, 200_000, 1_000_000)
_DEEPEST = 8
# In a place, the step from a list to its elements; other steps are names of fields.
_ELEMENT = 0
# The steps from a body, and whether a list may stand there, or an object.
Place = tuple[tuple[str | int, ...], type]


def flooded(chance: random.Random, body: Any, place: Place) -> bytes:
    """The body with very many small values in this place, or in several such places of a list.

    What lies around the place is made if the body does not have it.
    """
    path, kind = place
    lists = [depth for depth, step in enumerate(path) if step == _ELEMENT]
    repeated = chance.choice(lists) if lists and chance.random() < 0.4 else -1
    number = chance.choice((20, 400, 4000))

    def flood(value: Any, depth: int = 0) -> Any:
        if depth == len(path):
            usual = [value[0]] * len(_SMALL) if kind is list and isinstance(value, list) and value else []
            small = chance.choice([*_SMALL, *usual])
            size = chance.choice(_SIZES) // (number if repeated >= 0 else 1)
            count = max(1, size // (len(json.dumps(small)) + (2 if kind is list else 11)))
            return [small] * count if kind is list else {f"k{n}": small for n in range(count)}
        step = path[depth]
        if step == _ELEMENT:
            element = flood(value[0] if isinstance(value, list) and value else None, depth + 1)
            return [element] * (number if depth == repeated else 1)
        fields = value if isinstance(value, dict) else {}
        return {**fields, step: flood(fields.get(step), depth + 1)}

    return json.dumps(flood(body)).encode()


def places(description: Mapping[str, Any]) -> dict[str, list[Place]]:
    """All places of the bodies of all POST endpoints in an OpenAPI description, by path."""
    forms = description["components"]["schemas"]
    return {
        path: list(dict.fromkeys(_places(_body(methods["post"]), forms, ())))
        for path, methods in description["paths"].items()
        if "post" in methods
    }


def _body(operation: Mapping[str, Any]) -> Any:
    return operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", False)


def _places(schema: Any, forms: Mapping[str, Any], path: tuple[str | int, ...], depth: int = 0) -> Iterator[Place]:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = forms[schema["$ref"].rpartition("/")[2]]
    if depth > _DEEPEST or not isinstance(schema, dict):
        return
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _places(option, forms, path, depth + 1)
    is_any = not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "const", "enum"}
    if is_any or schema.get("type") == "array":
        yield path, list
        yield from _places(schema.get("items", False), forms, (*path, _ELEMENT), depth + 1)
    if is_any or schema.get("type") == "object":
        yield path, dict
    for name, inner in schema.get("properties", {}).items():
        yield from _places(inner, forms, (*path, name), depth + 1)
