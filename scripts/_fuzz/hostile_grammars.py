"""Fields of a chat's body that constrain its answer by schemas, expressions and grammars at a compiler's limits."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import count
from typing import Any

from .drawn import FLOATS, FORMATS, INTEGERS, TEXTS, Drawn

_POWERS = tuple(2**bits for bits in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63, 64, 65, 70, 100))
_INTEGERS = (*INTEGERS, *_POWERS, 10**308, 10**400)
_DOUBLES = (*FLOATS, 2.2250738585072014e-308, math.nextafter(1, 2), math.nextafter(1, 0), 2.0**53 + 2, 2.0**64)
_COUNTS = (0, 1, 2, 3, 100, 1000, 1001, 65535, 65536, 100_000, *(power + step for power in _POWERS for step in (-1, 0)))
_TEXTS = (*TEXTS, "\U0010ffff", "\x00", "/", "a" * 300, "</s>")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LINKS: tuple[Callable[[str], dict[str, Any]], ...] = (
    lambda to: {"$ref": to},
    lambda to: {"type": "object", "properties": {"a": {"$ref": to}}},
    lambda to: {"type": "array", "items": {"$ref": to}},
    lambda to: {"anyOf": [{"$ref": to}, {"type": "null"}]},
    lambda to: {"allOf": [{"$ref": to}]},
)
_LARGEST = 1_000_000


class Hostile(Drawn):
    """The grammars of one attempt: schemas with numbers, counts and patterns at the limits, and keywords anywhere."""

    def fields(self) -> dict[str, Any]:
        """Fields of a chat that constrain its answer."""
        match self._chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5:
                schema = {"name": "x", "schema": self.large_schema()}
                return {"response_format": {"type": "json_schema", "json_schema": schema}}
            case 6 | 7 | 8 | 9:
                return {"structured_outputs": {"json": self.large_schema()}}
            case 10 | 11 | 12:
                return {"structured_outputs": {"regex": self.expression()}}
            case 13 | 14 | 15 | 16:
                return {"structured_outputs": {"grammar": self.grammar()}}
            case 17:
                choices = [self._chance.choice(_TEXTS) + "x" for _ in range(self._chance.randrange(40))]
                return {"structured_outputs": {"choice": choices}}
        names = ["f", "g", "h"][: 1 + self._chance.randrange(3)]
        functions = [
            {"name": n, "parameters": {"type": "object", **self.large_schema()}, "strict": True} for n in names
        ]
        choice = self._chance.choice(("auto", "required", {"type": "function", "function": {"name": "f"}}))
        return {"tools": [{"type": "function", "function": one} for one in functions], "tool_choice": choice}

    def large_schema(self) -> dict[str, Any]:
        """A schema, with its definitions: very long, deep or wide, or a small one with something that may break."""
        chance = self._chance
        drawn: dict[str, Any] = self.schema()
        match chance.randrange(24):
            case 0:
                number, link = chance.choice((5, 50, 99, 101, 300)), chance.choice(_LINKS)
                links = {f"a{n}": link(f"#/$defs/a{n + 1}") for n in range(number)}
                last = chance.choice((drawn, {"$ref": "#/$defs/a0"}))
                return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{number}": last}}
            case 1:
                for _ in range(chance.choice((5, 20, 40, 60)) // 2):
                    drawn = chance.choice(({"type": "array", "items": drawn}, {"anyOf": [drawn, {"type": "null"}]}))
            case 2:
                names = [f"p{n}" for n in range(chance.choice((10, 100, 200, 999, 1001)))]
                required = names[:: chance.choice((1, 2, 999))]
                return {"type": "object", "properties": dict.fromkeys(names, drawn), "required": required}
        return drawn

    def expression(self) -> str:
        """A regular expression."""
        chance = self._chance
        match chance.randrange(20):
            case 0:
                number = chance.choice((10, 100, 240, 260, 3000))
                return "(" * number + "a" + (")" + chance.choice(("", "*", "?"))) * number
            case 1:
                return "|".join(f"a{number}" for number in range(chance.choice((50, 500, 3000))))
        return self.text("expression")

    def grammar(self) -> str:
        """A grammar of Lark."""
        chance = self._chance
        match chance.randrange(20):
            case 0 | 1:
                number, letter = chance.choice((10, 300, 600, 700, 2500, 4000)), chance.choice("aA")
                joint = chance.choice(("", ' "y"', ' | "z"'))
                rules = [f"{letter}{n}: {letter}{n + 1}{joint}" for n in range(number)]
                return "\n".join([f"start: {letter}0", *rules, f'{letter}{number}: "x"'])
            case 2:
                number = chance.choice((10, 100, 200, 1000))
                return f"start: {'(' * number}{self.text('terminal')}{')' * number}"
        return self.text("grammar")

    def embedded_schema(self) -> str:
        """A schema within a grammar."""
        return json.dumps(self.schema())

    def count(self) -> str:
        """A count in an expression or a grammar."""
        return f"{self._count(11)}"

    def _part(self) -> dict[str, Any]:
        chance, drawn = self._chance, super()._part()
        if "type" in drawn and chance.random() < 0.3:
            more: tuple[dict[str, Any], ...] = (
                {chance.choice(_BOUNDS): self._any_number()},
                {chance.choice(_SIZES): self._count(12)},
                {"format": chance.choice((*FORMATS, "regex", "json-pointer", "unknown", "iri", ""))},
                {"enum": [self._value() for _ in range(chance.randrange(30))]},
                {chance.choice(("const", "default")): self._value()},
                {"$ref": chance.choice(("#", "#/$defs/A", "#/properties/a", "#/nowhere", "other"))},
                {"not": chance.choice((True, False, {}, {"$ref": "#"}))},
                {"patternProperties": {self._pattern(): {"$ref": "#"}}},
                {"x-guidance": {"whitespace_flexible": True, "item_separator": chance.choice(_TEXTS), "lenient": True}},
            )
            drawn |= chance.choice(more)
        return drawn

    def _pattern(self) -> str:
        return self.expression() if self._chance.random() < 0.6 else super()._pattern()

    def _count(self, most: int) -> int:
        return self._chance.choice(_COUNTS) if self._chance.random() < 0.3 else super()._count(most)

    def _whole_number(self) -> int:
        if self._chance.random() < 0.5:
            return super()._whole_number()
        return self._chance.choice((-1, 1)) * (self._chance.choice(_INTEGERS) + self._chance.choice((-1, 0, 0, 0, 1)))

    def _any_number(self) -> int | float:
        return self._chance.choice(_DOUBLES) if self._chance.random() < 0.3 else super()._any_number()


def hostile_fields(seed: int, number: int) -> dict[str, Any]:
    """The fields for a seed and number, within the size limit of a body."""
    draws = (Hostile(random.Random(f"{seed}-{number}{'+' * again}")).fields() for again in count())
    return next(fields for fields in draws if len(json.dumps(fields)) < _LARGEST)
