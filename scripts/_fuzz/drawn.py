"""Small JSON schemas at random, with patterns as ECMA-262 has them: the same one for the same seed and number."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
KEYS = ["a", "b", "from", "é", "x-y", "", 'q"', "a\n", "a/b", "😀", "1", "__proto__"]
TEXTS = ["", "a", "é", "😀", "e\u0301", 'a"b', "a\\b", "a/b", "\n\t", "\u2028", "0", "\x7f", "\x01", "<|end|>"]
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]
_DEEPEST = 3
# Deeper, a text uses the last production of each symbol.
_DEEPEST_TEXT = 14

INTEGERS = [0, 1, -1, 2, 5, 9, 10, 99, 100, -7, 255, 1000, 2**31 - 1, 2**31, -(2**31), 2**32, 10**15, 10**17, 10**18]
INTEGERS += [sign * 2**power + more for sign in (1, -1) for power in (53, 63, 64, 70) for more in (-1, 0, 1)]
INTEGERS += [10**19, 10**22, 10**23, 10**40, 10**60, -(10**40), 2**63 - 1024, -(2**63) + 1024, 10**18 - 1, 2**60 + 1]
FLOATS = [0.0, -0.0, 0.1, -0.1, 0.5, -0.5, 1.5, 0.25, 0.3, 1e-7, 1e-20, 5e-324, 1e15, 1e16, 1e17, 1e21, 1e22, 1e23]
FLOATS += [1.0, 2.0, -3.0, 123.456, 0.1 + 0.2, 9.999999, -1e-7, 1.7976931348623157e308, -3.4028234663852886e38, 1e300]
FLOATS += [99.99, 100.01, 0.01, 0.009, 2.0**53, 2.0**63, 4503599627370496.5, 0.30000000000000004, 12345678901234.567]
MULTIPLES = [1, 2, 3, 5, 7, 10, 100, 0.5, 0.1, 0.01, 0.25, 1.5, 0.3, 0.07, 1e-7, 1.1, 25, 2.5, 1.0, 12, 97, 0.001, 1e3]


def _productions() -> dict[str, tuple[list[str], list[int]]]:
    """The productions of each symbol of texts.yaml, and their weights."""
    read = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))
    found = {}
    for symbol, listed in read.items():
        weighted = [
            each if isinstance(each, list) else (1, each)
            for each in (listed.split() if isinstance(listed, str) else listed)
        ]
        found[symbol] = ([str(text) for _, text in weighted], [weight for weight, _ in weighted])
    return found


_PRODUCTIONS = _productions()


class Drawn:
    """One schema, whose parts all use the same random numbers."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names: list[str] = []
        self._depth = -1

    def schema(self) -> dict[str, Any]:
        """A complete schema, with its definitions."""
        self._names = self._some(["A", "B", "tree node"], 2) if self._chance.random() < 0.15 else []
        drawn = self._part()
        if self._names:
            self._depth = 0
            drawn["$defs"] = {name: self._part() for name in self._names}
            self._depth = -1
        drafts = ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
        return drawn | self._rarely(0.03, {"$schema": lambda: self._chance.choice(drafts)})

    def text(self, symbol: str, depth: int = 0) -> str:
        """A text of this symbol."""
        if symbol not in _PRODUCTIONS:
            drawn: str = getattr(self, symbol)()
            return drawn
        texts, weights = _PRODUCTIONS[symbol]
        (text,) = self._chance.choices(texts, weights) if depth < _DEEPEST_TEXT else texts[-1:]
        return re.sub("«(.*?)»", lambda found: self.text(found[1], depth + 1), text)

    def _pattern(self) -> str:
        return self.text("pattern")

    def _part(self) -> dict[str, Any]:
        self._depth += 1
        kinds = [self._number] * 6 + [self._string] * 4 + [self._literal] * 2 + [self._plain]
        if self._depth < _DEEPEST:
            kinds += [self._object] * 4 + [self._array] * 3 + [self._union, self._joined, self._retyped] * 2
        if self._names and self._depth:
            kinds += [self._reference] * 3
        drawn = self._chance.choice(kinds)()
        self._depth -= 1
        return drawn

    def _parts(self, most: int) -> list[dict[str, Any]]:
        return [self._part() for _ in range(self._chance.randint(1, most))]

    def _part_or_none(self) -> dict[str, Any] | bool:
        return False if self._chance.random() < 0.5 else self._part()

    def _some(self, things: list[Any], most: int) -> list[Any]:
        return self._chance.sample(things, self._chance.randint(0, min(most, len(things))))

    def _rarely(self, share: float, keywords: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """Each of these keywords with this probability."""
        return {name: draw() for name, draw in keywords.items() if self._chance.random() < share}

    def _plain(self) -> dict[str, Any]:
        return self._chance.choice([{"type": "boolean"}, {"type": "null"}, {"type": "string"}, {"type": "number"}, {}])

    def _reference(self) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self._chance.choice(self._names).replace(' ', '%20')}"}

    def _whole_number(self) -> int:
        chance = self._chance
        match chance.randint(0, 3):
            case 0:
                return chance.randint(-20, 120)
            case 1:
                return chance.choice(INTEGERS)
            case 2:
                return chance.randint(-(10 ** chance.randint(1, 20)), 10 ** chance.randint(1, 20))
            case _:
                return chance.choice(INTEGERS[:12])

    def _any_number(self) -> int | float:
        chance = self._chance
        match chance.randint(0, 3):
            case 0:
                return self._whole_number()
            case 1:
                return chance.choice(FLOATS)
            case 2:
                return float(f"{chance.randint(-2000, 2000)}e-{chance.randint(0, 4)}")
            case _:
                return chance.uniform(-1, 1) * 10.0 ** chance.randint(-10, 20)

    def _count(self, most: int) -> int:
        return self._chance.randint(0, most)

    def _number(self) -> dict[str, Any]:
        kind = self._chance.choice(["integer", "number"])
        return {"type": kind, **self._bounds(is_whole=kind == "integer" and self._chance.random() < 0.8)}

    def _bounds(self, *, is_whole: bool) -> dict[str, Any]:
        draw = self._whole_number if is_whole else self._any_number
        low, high = sorted((draw(), draw()))
        if self._chance.random() < 0.1:
            high = low
        lower = self._chance.choice(["minimum", "minimum", "exclusiveMinimum"])
        upper = self._chance.choice(["maximum", "maximum", "exclusiveMaximum"])
        bounds = self._rarely(0.7, {lower: lambda: low, upper: lambda: high})
        return bounds | self._rarely(0.2, {"multipleOf": lambda: self._chance.choice(MULTIPLES)})

    def _lengths(self, low: str, high: str, most: int) -> dict[str, Any]:
        first, second = sorted(self._count(most) for _ in range(2))
        given = {low: first, high: second}
        return {key: given[key] for key in self._some([low, high], 2)}

    def _string(self) -> dict[str, Any]:
        drawn: dict[str, Any] = {"type": "string"}
        kind = self._chance.randint(0, 9)
        if kind < 4:
            drawn["pattern"] = self._pattern()
        elif kind < 7:
            drawn["format"] = self._chance.choice(FORMATS)
        if kind in (0, 4, 7, 8, 9):
            drawn |= self._lengths("minLength", "maxLength", self._chance.choice([3, 8, 30]))
        return drawn | self._rarely(0.03, {"pattern": self._pattern})

    def _value(self, depth: int = 0) -> Any:
        chance = self._chance
        match chance.randint(0, 6 if depth < 2 else 4):
            case 0:
                return chance.choice([None, True, False])
            case 1:
                return self._whole_number()
            case 2:
                return self._any_number()
            case 3 | 4:
                return chance.choice(TEXTS)
            case 5:
                return [self._value(depth + 1) for _ in range(chance.randint(0, 2))]
            case _:
                return {key: self._value(depth + 1) for key in self._some(KEYS, 2)}

    def _literal(self) -> dict[str, Any]:
        if self._chance.random() < 0.3:
            drawn = {"const": self._value()}
        else:
            drawn = {"enum": [self._value() for _ in range(self._chance.randint(1, 4))]}
        drawn |= self._rarely(0.3, {"type": lambda: self._chance.choice(TYPES)})
        return drawn | (self._bounds(is_whole=False) if self._chance.random() < 0.1 else {})

    def _object(self) -> dict[str, Any]:
        chance = self._chance
        names = self._some(KEYS, 3)
        drawn: dict[str, Any] = {"type": "object", "properties": {name: self._part() for name in names}}
        drawn["required"] = [name for name in names if chance.random() < 0.5]
        if chance.random() < 0.05:
            drawn["required"] += [key for key in self._some(KEYS, 1) if key not in names]
        if chance.random() < 0.1:
            del drawn["properties"]
        if chance.random() < 0.15:
            drawn |= self._lengths("minProperties", "maxProperties", 3)
        by_pattern = {"patternProperties": lambda: {self._pattern(): part for part in self._parts(2)}}
        drawn |= self._rarely(0.5, {"additionalProperties": self._part_or_none}) | self._rarely(0.15, by_pattern)
        return drawn | self._rarely(0.02, {"propertyNames": lambda: {"pattern": self._pattern()}})

    def _array(self) -> dict[str, Any]:
        drawn = {"type": "array", **self._rarely(0.8, {"items": self._part})}
        if self._chance.random() < 0.25:
            drawn["prefixItems"] = self._parts(3)
            drawn |= self._rarely(0.3, {"items": lambda: False})
        if self._chance.random() < 0.5:
            drawn |= self._lengths("minItems", "maxItems", 4)
        drawn |= self._rarely(0.04, {"uniqueItems": lambda: self._chance.random() < 0.7})
        return drawn | self._rarely(0.02, {"additionalItems": self._part_or_none, "contains": self._part})

    def _union(self) -> dict[str, Any]:
        drawn: dict[str, Any] = {self._chance.choice(["anyOf", "anyOf", "oneOf"]): self._parts(3)}
        return drawn | (self._part() if self._chance.random() < 0.15 else {})

    def _joined(self) -> dict[str, Any]:
        kind = self._chance.choice([self._number, self._number, self._string, self._object, self._array, self._part])
        drawn: dict[str, Any] = {"allOf": [kind() for _ in range(self._chance.randint(1, 2))]}
        drawn |= kind() if self._chance.random() < 0.6 else {}
        return drawn | self._rarely(0.05, {"not": self._part})

    def _retyped(self) -> dict[str, Any]:
        """A part that may also be null, or without its type."""
        drawn = self._part()
        kind = drawn.pop("type", None)
        if isinstance(kind, str) and kind != "null" and self._chance.random() < 0.5:
            return {**drawn, "type": [kind, "null"]}
        return drawn | self._rarely(0.2, {"type": lambda: self._some(TYPES, 3) or "string"})


def drawn_schema(seed: int, number: int) -> dict[str, Any]:
    """The schema of this number."""
    return Drawn(random.Random(f"schema {seed} {number}")).schema()
