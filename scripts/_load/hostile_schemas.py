"""JSON schemas at the limits of a compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .hostile_expressions import Expressions

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_FORMATS = (
    *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "regex"),
    *("json-pointer", "unknown", "iri", ""),
)


class Schemas(Expressions):
    """Schemas, with numbers, expressions and references that are meant to break something."""

    def top(self) -> dict[str, Any]:
        """A schema, with its definitions."""
        match self._chance.randrange(24):
            case 0:
                return self._chain(self._chance.choice((5, 50, 99, 101, 300)))
            case 1:
                return self._nested(self._chance.choice((5, 20, 40, 60)))
            case 2:
                return self._wide(self._chance.choice((10, 100, 200, 999, 1001)))
        found = self.schema(3)
        if "$ref" in str(found):
            found.setdefault("$defs", {"a": self.schema(2), "b": self.schema(1)})
        return found

    def schema(self, depth: int) -> dict[str, Any]:
        """A schema of at most this depth."""
        kind = self._chance.choice(_TYPES if depth > 0 else _TYPES[2:])
        schema: dict[str, Any] = {"type": kind} if self._chance.random() < 0.9 else {}
        getattr(self, f"_of_{kind}")(schema, depth - 1)
        if self._chance.random() < 0.12:
            self._joined(schema, depth - 1)
        if self._chance.random() < 0.06:
            schema[self._chance.choice(("const", "default"))] = self._value()
        if self._chance.random() < 0.06:
            schema["enum"] = [self._value() for _ in range(self._few(30))]
        if self._chance.random() < 0.03:
            options = {"whitespace_flexible": True, "item_separator": self._text(), "whitespace_pattern": "x*"}
            schema["x-guidance"] = options | {"coerce_one_of": True, "lenient": True}
        return schema

    def _of_string(self, schema: dict[str, Any], depth: int) -> None:
        self._maybe(schema, minLength=self._count, maxLength=self._count)
        if self._chance.random() < 0.3:
            schema["pattern"] = self.expression(3)
        if self._chance.random() < 0.15:
            schema["format"] = self._chance.choice(_FORMATS)

    def _of_integer(self, schema: dict[str, Any], depth: int) -> None:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        self._maybe(schema, chance=0.45, **dict.fromkeys(bounds, self._number))
        self._maybe(schema, chance=0.15, multipleOf=self._number)

    _of_number = _of_integer

    def _of_array(self, schema: dict[str, Any], depth: int) -> None:
        self._maybe(schema, minItems=self._count, maxItems=self._count)
        if self._chance.random() < 0.7:
            schema["items"] = self._sub(depth)
        if self._chance.random() < 0.2:
            schema["prefixItems"] = [self._sub(depth) for _ in range(self._few(20))]
        if self._chance.random() < 0.05:
            schema["uniqueItems"] = True

    def _of_object(self, schema: dict[str, Any], depth: int) -> None:
        names = [self._text() + str(n) for n in range(self._few(6))]
        schema["properties"] = {name: self._sub(depth) for name in names}
        schema["required"] = [name for name in names if self._chance.random() < 0.5]
        self._maybe(schema, chance=0.1, minProperties=self._count, maxProperties=self._count)
        if self._chance.random() < 0.4:
            schema["additionalProperties"] = self._chance.choice((False, True, self._sub(depth)))
        if self._chance.random() < 0.08:
            schema["patternProperties"] = {self.expression(2): self._sub(depth) for _ in range(self._few(5))}

    def _of_boolean(self, schema: dict[str, Any], depth: int) -> None:
        pass

    _of_null = _of_boolean

    def _joined(self, schema: dict[str, Any], depth: int) -> None:
        match self._chance.randrange(5):
            case 0:
                schema["$ref"] = self._chance.choice(
                    ("#", "#/$defs/a", "#/$defs/b", "#/properties/a0", "#/nowhere", "other")
                )
            case 1:
                schema["not"] = self._sub(depth)
            case _:
                word = self._chance.choice(("anyOf", "oneOf", "allOf"))
                schema[word] = [self._sub(depth) for _ in range(1 + self._few(8))]

    def _sub(self, depth: int) -> Any:
        if self._chance.random() < 0.05:
            return self._chance.choice((True, False, {}, {"$ref": "#"}, {"$ref": "#/$defs/a"}))
        return self.schema(max(0, depth))

    def _chain(self, number: int) -> dict[str, Any]:
        last = self._chance.choice((self.schema(1), {"$ref": "#/$defs/a0"}))
        link: Callable[[str], dict[str, Any]] = self._chance.choice(_LINKS)
        links = {f"a{n}": link(f"#/$defs/a{n + 1}") for n in range(number)}
        return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{number}": last}}

    def _nested(self, depth: int) -> dict[str, Any]:
        found = self.schema(1)
        for _ in range(depth // 2):
            found = self._chance.choice(({"type": "array", "items": found}, {"anyOf": [found, {"type": "null"}]}))
        return found

    def _wide(self, number: int) -> dict[str, Any]:
        schema = self.schema(1)
        names = [f"p{n}" for n in range(number)]
        required = names[:: self._chance.choice((1, 2, 999))]
        return {"type": "object", "properties": dict.fromkeys(names, schema), "required": required}

    def _maybe(self, schema: dict[str, Any], chance: float = 0.3, **made: Callable[[], Any]) -> None:
        schema.update({name: make() for name, make in made.items() if self._chance.random() < chance})


_LINKS: tuple[Callable[[str], dict[str, Any]], ...] = (
    lambda to: {"$ref": to},
    lambda to: {"type": "object", "properties": {"a": {"$ref": to}}},
    lambda to: {"type": "array", "items": {"$ref": to}},
    lambda to: {"anyOf": [{"$ref": to}, {"type": "null"}]},
    lambda to: {"allOf": [{"$ref": to}]},
)
