"""Fields of a chat's body that constrain its answer by schemas, expressions and grammars at a compiler's limits."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import count
from typing import Any

_POWERS = tuple(2**bits for bits in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63, 64, 65, 70, 100))
_INTEGERS = (0, 1, 2, 9, 10, 99, 1000, *_POWERS, 10**18, 10**19, 10**40, 10**308, 10**400)
_DOUBLES = (
    *(0.0, 0.1, 0.5, 1e-9, 1e15, 1e16, 1e17, 1e19, 1e22, 1e100, 1e308, math.nextafter(math.inf, 0)),
    *(5e-324, 2.2250738585072014e-308, math.nextafter(1, 2), math.nextafter(1, 0), 2.0**53 + 2, 2.0**63, 2.0**64),
)
_COUNTS = (0, 1, 2, 3, 100, 1000, 1001, 65535, 65536, 100_000, *(power + step for power in _POWERS for step in (-1, 0)))
_TEXTS = ("a", "é", "\U0010ffff", "\x00", '"', "\\", "/", "\n", "a" * 300, "", "\u2028", "</s>", "<|end|>")
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_FORMATS = (
    *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "regex"),
    *("json-pointer", "unknown", "iri", ""),
)
_TOKENS = ("<|end|>", "<|im_end|>", "<tool_call>", "<[0]>", "<[1-5]>", "<[65,66-70]>", "<[^1-5]>", "<[*]>", "<[1900]>")
_LARGEST = 1_000_000
_ODD_TOKENS = ("<[5-1]>", "<[4294967295]>", "<[99999999999999999999]>", "<[-1]>", "<[]>", "<||>", "<a b>")
_LINKS: tuple[Callable[[str], dict[str, Any]], ...] = (
    lambda to: {"$ref": to},
    lambda to: {"type": "object", "properties": {"a": {"$ref": to}}},
    lambda to: {"type": "array", "items": {"$ref": to}},
    lambda to: {"anyOf": [{"$ref": to}, {"type": "null"}]},
    lambda to: {"allOf": [{"$ref": to}]},
)


class Expressions:
    """Random values and expressions; the same for the same seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def expression(self, depth: int) -> str:
        """A regular expression."""
        chance = self._chance
        atoms: tuple[str, ...] = (
            "a",
            "b",
            ".",
            r"\d",
            r"\w",
            r"\p{L}",
            r"\p{Greek}",
            "[^a]",
            "[a-z0-9_]",
            "^",
            "$",
            r"\b",
            "é",
            "(?i)k",
        )
        atoms += (
            r"\u{10ffff}",
            r"\x00",
            "[[:alpha:]]",
            r"[\s\S]",
            r"\B",
            "(?s).",
            "[",
            "\\",
            r"[^\x00-\x{10FFFF}]",
            "~",
            "&",
        )
        if depth <= 0:
            return chance.choice(atoms)
        inner = self.expression
        match chance.randrange(9):
            case 0 | 1:
                return inner(depth - 1) + inner(depth - 2)
            case 2:
                return f"({inner(depth - 1)}|{inner(depth - 2)})"
            case 3 | 4:
                return f"({inner(depth - 1)}){self._repeat()}"
            case 5:
                return f"(?{chance.choice((':', 'i:', 's:', 'x:', '=', '!', '<=', 'P<n>', '-u:'))}{inner(depth - 1)})"
            case 6 if chance.random() < 0.2:
                number = chance.choice((10, 100, 240, 260, 3000))
                return "(" * number + inner(0) + (")" + chance.choice(("", "*", "?"))) * number
            case 7 if chance.random() < 0.2:
                return "|".join(f"{inner(0)}{number}" for number in range(chance.choice((50, 500, 3000))))
        return f"{chance.choice(atoms)}{self._repeat()}"

    def _repeat(self) -> str:
        low, high = sorted((self._count(), self._count()))
        counted = (f"{{{low}}}", f"{{{low},}}", f"{{{low},{high}}}", "{9,1}", "{0}", "{2}", "{0,}")
        return self._chance.choice(("", "*", "+", "?", "*?", *counted))

    def _few(self, most: int) -> int:
        return min(int(self._chance.expovariate(0.5)), most)

    def _count(self) -> int:
        return self._chance.choice(_COUNTS) if self._chance.random() < 0.3 else self._chance.randrange(12)

    def _number(self) -> Any:
        number = self._chance.choice(self._chance.choice((_INTEGERS, _DOUBLES, range(20))))
        if isinstance(number, int):
            number += self._chance.choice((-1, 0, 0, 0, 1))
        return number * self._chance.choice((-1, 1))

    def _text(self) -> str:
        return self._chance.choice(_TEXTS)

    def _value(self) -> Any:
        return self._chance.choice(
            (None, True, self._number(), self._text(), [self._number()], {"a": self._text()}, {}, [])
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


class Hostile(Schemas):
    """The grammars of one attempt."""

    def fields(self) -> dict[str, Any]:
        """Fields of a chat that constrain its answer."""
        match self._chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5:
                return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": self.top()}}}
            case 6 | 7 | 8 | 9:
                return {"structured_outputs": {"json": self.top()}}
            case 10 | 11 | 12:
                return {"structured_outputs": {"regex": self.expression(4)}}
            case 13 | 14 | 15 | 16:
                return {"structured_outputs": {"grammar": self.grammar()}}
            case 17:
                return {"structured_outputs": {"choice": [self._text() + "x" for _ in range(self._few(40))]}}
        names = ["f", "g", "h"][: 1 + self._chance.randrange(3)]
        functions = [{"name": name, "parameters": {"type": "object", **self.top()}, "strict": True} for name in names]
        choice = self._chance.choice(("auto", "required", {"type": "function", "function": {"name": "f"}}))
        return {"tools": [{"type": "function", "function": one} for one in functions], "tool_choice": choice}

    def grammar(self) -> str:
        """A grammar of Lark."""
        chance = self._chance
        if chance.random() < 0.1:
            number, letter = chance.choice((10, 300, 600, 700, 2500, 4000)), chance.choice("aA")
            joint = chance.choice(("", ' "y"', ' | "z"'))
            rules = [f"{letter}{n}: {letter}{n + 1}{joint}" for n in range(number)]
            return "\n".join([f"start: {letter}0", *rules, f'{letter}{number}: "x"'])
        rules = [f"{name}{self._attributes()}: {self._rule(3)}" for name in ("start", "a", "b")]
        terminals = [f"{name}: {self._terminal(2)}" for name in ("A", "B")]
        more: tuple[str, ...] = (
            "%ignore /\\s+/",
            "%ignore A",
            '%llguidance {"no_forcing": true}',
            "%import common.INT",
            "// c",
            "C: A B | C",
        )
        more += ('%llguidance {"allow_initial_skip": true}', "%llguidance {}", "%declare X", '%llguidance {"x": 1}')
        return "\n".join([*rules, *terminals, *chance.sample(more, chance.choice((0, 0, 1, 2)))])

    def _rule(self, depth: int) -> str:
        chance, inner = self._chance, self._rule
        if depth <= 0:
            return chance.choice(
                ("a", "b", "A", "B", '"x"', '"x"i', "start", '""', chance.choice(_TOKENS), self._terminal(0))
            )
        match chance.randrange(12):
            case 0 | 1 | 2:
                return f"{inner(depth - 1)} {inner(depth - 2)}"
            case 3 | 4:
                return f"({inner(depth - 1)} | {inner(depth - 2)})"
            case 5 | 6:
                return f"({inner(depth - 1)}){self._lark_repeat()}"
            case 7:
                return f"%json {json.dumps(self.top())}"
            case 8:
                return f"[{inner(depth - 1)}]"
            case 9 if chance.random() < 0.2:
                return chance.choice(_ODD_TOKENS)
            case 10:
                return f"({inner(depth - 1)} & ~({inner(0)}))"
            case 11 if chance.random() < 0.1:
                number = chance.choice((10, 100, 200, 1000))
                return "(" * number + inner(0) + ")" * number
        return inner(0)

    def _terminal(self, depth: int) -> str:
        chance = self._chance
        if depth and chance.random() < 0.4:
            return f"({self._terminal(depth - 1)} {chance.choice(('|', '&', '', '& ~'))} {self._terminal(depth - 1)})"
        words = '%regex {"substring_words": "a b c"}'
        some = (f"/{self.expression(2)}/", '"y".."z"', '"ab"', r"/\w{2,9}/", "A", "B", '"x"*', words)
        return chance.choice(some)

    def _attributes(self) -> str:
        some = (
            "[lazy]",
            "[capture]",
            '[suffix="x"]',
            "[stop=/y/]",
            f"[max_tokens={self._count()}]",
            "[temperature=1e308]",
        )
        return self._chance.choice(some) if self._chance.random() < 0.1 else ""

    def _lark_repeat(self) -> str:
        return self._chance.choice(
            ("*", "+", "?", f"{{{self._count()}}}", f"{{1,{self._count()}}}", "~3", "~2..5", "{,4}")
        )


def hostile_fields(seed: int, number: int) -> dict[str, Any]:
    """The fields for a seed and number, within the size limit of a body."""
    draws = (Hostile(random.Random(f"{seed}-{number}{'+' * again}")).fields() for again in count())
    return next(fields for fields in draws if len(json.dumps(fields)) < _LARGEST)
