"""Bodies that are one long list, or one object of many fields, wherever a server's description allows either."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Small values, each invalid in most places.
_SMALL = ("{}", "[]", '""', '"x"', "-1", "0.5", "null", "true", '{"type":"text"}', '{"role":"user"}', "[[]]", "1e999")
# In bytes; the largest is a server's limit.
_SIZES = (20_000, 200_000, 1_000_000)
_DEEPEST = 8
# Optional fields that keep an answer short, or that a message requires.
_USUAL = ("max_tokens", "max_output_tokens", "content")


@dataclass(frozen=True)
class Place:
    """Where a list or an object may stand: the JSON around it, one pair of texts for each list that it lies in, the
    outermost first, and around itself. `usual` is an element that the description allows, empty for an object.
    """

    around: tuple[tuple[str, str], ...]
    usual: str = ""


def flooded(chance: random.Random, place: Place) -> bytes:
    """The body with very many small values in this place, or in several such places of a list."""
    size = chance.choice(_SIZES)
    shares = [1] * (len(place.around) - 1)
    if shares and chance.random() < 0.4:
        shares[chance.randrange(len(shares))] = chance.choice((20, 400, 4000))
    inner = size
    for share in shares:
        inner //= share
    small = chance.choice((*_SMALL, *[place.usual] * 4)) if place.usual else chance.choice(_SMALL)
    text = _list(small, inner) if place.usual else _object(small, inner)
    for depth, (before, after) in reversed(list(enumerate(place.around))):
        text = before + text + after
        if depth:  # an element of a list
            text = f"[{','.join([text] * shares[depth - 1])}]"
    return text.encode()


def places(description: Mapping[str, Any]) -> dict[str, list[Place]]:
    """All places of the POST bodies in an OpenAPI description, by path."""
    found = {}
    for path, methods in description["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            forms = description["components"]["schemas"]
            found[path] = list(dict.fromkeys(_places(content["schema"], forms, (("", ""),), 0)))
    return found


def _places(schema: Any, forms: Mapping[str, Any], around: tuple[tuple[str, str], ...], depth: int) -> Iterator[Place]:
    schema = _resolved(schema, forms)
    if depth > _DEEPEST:
        return
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _places(option, forms, around, depth + 1)
    is_any = not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "const", "enum"}
    if is_any or schema.get("type") == "array":
        items = schema.get("items", {})
        yield Place(around, json.dumps(_smallest(items, forms)))
        if not is_any:
            yield from _places(items, forms, (*around, ("", "")), depth + 1)
    if is_any or schema.get("type") == "object":
        yield Place(around)
    for name, inner in schema.get("properties", {}).items():
        others = {other: value for other, value in _required(schema, forms).items() if other != name}
        before = "".join(f"{json.dumps(other)}:{json.dumps(value)}," for other, value in others.items())
        *outer, (start, end) = around
        within = (*outer, (f"{start}{{{before}{json.dumps(name)}:", f"}}{end}"))
        yield from _places(inner, forms, within, depth + 1)


def _required(schema: Mapping[str, Any], forms: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """The required fields of an object, with small values."""
    return {
        name: _smallest(inner, forms, depth)
        for name, inner in schema.get("properties", {}).items()
        if name in schema.get("required", ()) or "const" in inner or (name in _USUAL and "anyOf" in inner)
    }


def _smallest(schema: Any, forms: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that is valid, or nearly."""
    schema = _resolved(schema, forms)
    if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _smallest(options[0], forms, depth + 1)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object" if depth < _DEEPEST:
            return _required(schema, forms, depth + 1)
        case "array" if depth < _DEEPEST:
            return [_smallest(schema.get("items", {}), forms, depth + 1)] * schema.get("minItems", 0)
        case "integer" | "number":
            return int(schema.get("minimum", 1))
        case "boolean":
            return True
        case "string":
            return "x"
    return {}


def _resolved(schema: Any, forms: Mapping[str, Any]) -> Mapping[str, Any]:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = forms[schema["$ref"].rpartition("/")[2]]
    return schema if isinstance(schema, dict) else {}


def _list(small: str, size: int) -> str:
    return f"[{','.join([small] * max(1, size // (len(small) + 1)))}]"


def _object(small: str, size: int) -> str:
    fields: Sequence[str] = [f'"k{n}":{small}' for n in range(max(1, size // (len(small) + 9)))]
    return f"{{{','.join(fields)}}}"
