"""Fields of a chat's body that constrain its answer by schemas, expressions and grammars at a compiler's limits."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import count
from typing import Any

from .drawn import FORMATS, INTEGERS, TEXTS, Drawn, pattern

_POWERS = tuple(2**bits for bits in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63, 64, 65, 70, 100))
_INTEGERS = (*INTEGERS, *_POWERS, 10**308, 10**400)
_DOUBLES = (
    *(0.0, 0.1, 0.5, 1e-9, 1e15, 1e16, 1e17, 1e19, 1e22, 1e100, 1e308, math.nextafter(math.inf, 0)),
    *(5e-324, 2.2250738585072014e-308, math.nextafter(1, 2), math.nextafter(1, 0), 2.0**53 + 2, 2.0**63, 2.0**64),
)
_COUNTS = (0, 1, 2, 3, 100, 1000, 1001, 65535, 65536, 100_000, *(power + step for power in _POWERS for step in (-1, 0)))
_TEXTS = (*TEXTS, "\U0010ffff", "\x00", "/", "a" * 300, "</s>")
_EXPRESSIONS = (
    *("[", "\\", "~", "&", r"\x00", r"\B", "(?s).", "(?i)k", "(?-u:.)", "(?P<n>a)", "(?<=a)b", "(?x: a)"),
    *(r"\p{Greek}", r"\u{10ffff}", r"[^\x00-\x{10FFFF}]", "[[:alpha:]]"),
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LINKS: tuple[Callable[[str], dict[str, Any]], ...] = (
    lambda to: {"$ref": to},
    lambda to: {"type": "object", "properties": {"a": {"$ref": to}}},
    lambda to: {"type": "array", "items": {"$ref": to}},
    lambda to: {"anyOf": [{"$ref": to}, {"type": "null"}]},
    lambda to: {"allOf": [{"$ref": to}]},
)
_TOKENS = ("<|end|>", "<|im_end|>", "<tool_call>", "<[0]>", "<[1-5]>", "<[65,66-70]>", "<[^1-5]>", "<[*]>", "<[1900]>")
_ODD_TOKENS = ("<[5-1]>", "<[4294967295]>", "<[99999999999999999999]>", "<[-1]>", "<[]>", "<||>", "<a b>")
_DECLARATIONS = (
    *("%ignore /\\s+/", "%ignore A", "%import common.INT", "// c", "C: A B | C", "%declare X", "%llguidance {}"),
    *('%llguidance {"no_forcing": true}', '%llguidance {"allow_initial_skip": true}', '%llguidance {"x": 1}'),
)
_LARGEST = 1_000_000


class Hostile:
    """The grammars of one attempt, the same for the same chance."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def fields(self) -> dict[str, Any]:
        """Fields of a chat that constrain its answer."""
        match self._chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5:
                schema = {"name": "x", "schema": self.schema()}
                return {"response_format": {"type": "json_schema", "json_schema": schema}}
            case 6 | 7 | 8 | 9:
                return {"structured_outputs": {"json": self.schema()}}
            case 10 | 11 | 12:
                return {"structured_outputs": {"regex": self.expression()}}
            case 13 | 14 | 15 | 16:
                return {"structured_outputs": {"grammar": self.grammar()}}
            case 17:
                choices = [self._chance.choice(_TEXTS) + "x" for _ in range(self._chance.randrange(40))]
                return {"structured_outputs": {"choice": choices}}
        names = ["f", "g", "h"][: 1 + self._chance.randrange(3)]
        functions = [{"name": n, "parameters": {"type": "object", **self.schema()}, "strict": True} for n in names]
        choice = self._chance.choice(("auto", "required", {"type": "function", "function": {"name": "f"}}))
        return {"tools": [{"type": "function", "function": one} for one in functions], "tool_choice": choice}

    def schema(self) -> dict[str, Any]:
        """A schema, with its definitions: very long, deep or wide, or a small one with something that may break."""
        chance = self._chance
        drawn: dict[str, Any] = self._hardened(Drawn(chance).schema())
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

    def _hardened(self, part: Any) -> Any:
        """A part of a schema with some numbers, counts and patterns at the limits, and with keywords anywhere."""
        if isinstance(part, list):
            return [self._hardened(each) for each in part]
        if not isinstance(part, dict):
            return part
        chance = self._chance
        found = {key: self._hardened(value) for key, value in part.items()}
        for key in found:
            if chance.random() < 0.6:
                if key in _BOUNDS:
                    found[key] = self._number()
                elif key in _SIZES:
                    found[key] = self._count()
                elif key == "pattern":
                    found[key] = self.expression()
        if "type" in found and chance.random() < 0.3:
            more: tuple[dict[str, Any], ...] = (
                {chance.choice(_BOUNDS): self._number()},
                {chance.choice(_SIZES): self._count()},
                {"format": chance.choice((*FORMATS, "regex", "json-pointer", "unknown", "iri", ""))},
                {"enum": [self._value() for _ in range(chance.randrange(30))]},
                {chance.choice(("const", "default")): self._value()},
                {"$ref": chance.choice(("#", "#/$defs/A", "#/properties/a", "#/nowhere", "other"))},
                {"not": chance.choice((True, False, {}, {"$ref": "#"}))},
                {"patternProperties": {self.expression(): {"$ref": "#"}}},
                {"x-guidance": {"whitespace_flexible": True, "item_separator": chance.choice(_TEXTS), "lenient": True}},
            )
            found |= chance.choice(more)
        return found

    def expression(self) -> str:
        """A regular expression."""
        chance = self._chance
        match chance.randrange(20):
            case 0:
                number = chance.choice((10, 100, 240, 260, 3000))
                return "(" * number + "a" + (")" + chance.choice(("", "*", "?"))) * number
            case 1:
                return "|".join(f"a{number}" for number in range(chance.choice((50, 500, 3000))))
            case 2 | 3:
                return pattern(chance) + chance.choice(_EXPRESSIONS) + pattern(chance)
        return f"({pattern(chance)}){self._repeat()}" * chance.choice((1, 1, 2))

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
        return "\n".join([*rules, *terminals, *chance.sample(_DECLARATIONS, chance.choice((0, 0, 1, 2)))])

    def _rule(self, depth: int) -> str:
        chance, inner = self._chance, self._rule
        if depth <= 0:
            leaves = ("a", "b", "A", "B", '"x"', '"x"i', "start", '""', chance.choice(_TOKENS), self._terminal(0))
            return chance.choice(leaves)
        match chance.randrange(12):
            case 0 | 1 | 2:
                return f"{inner(depth - 1)} {inner(depth - 2)}"
            case 3 | 4:
                return f"({inner(depth - 1)} | {inner(depth - 2)})"
            case 5 | 6:
                counts = (f"{{{self._count()}}}", f"{{1,{self._count()}}}", "~3", "~2..5", "{,4}")
                return f"({inner(depth - 1)}){chance.choice(('*', '+', '?', *counts))}"
            case 7:
                return f"%json {json.dumps(self.schema())}"
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
        return chance.choice((f"/{self.expression()}/", '"y".."z"', '"ab"', r"/\w{2,9}/", "A", "B", '"x"*', words))

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

    def _repeat(self) -> str:
        low, high = sorted((self._count(), self._count()))
        counted = (f"{{{low}}}", f"{{{low},}}", f"{{{low},{high}}}", "{9,1}", "{0}", "{2}", "{0,}")
        return self._chance.choice(("", "*", "+", "?", "*?", *counted))

    def _count(self) -> int:
        return self._chance.choice(_COUNTS) if self._chance.random() < 0.3 else self._chance.randrange(12)

    def _number(self) -> Any:
        number = self._chance.choice(self._chance.choice((_INTEGERS, _DOUBLES, range(20))))
        if isinstance(number, int):
            number += self._chance.choice((-1, 0, 0, 0, 1))
        return number * self._chance.choice((-1, 1))

    def _value(self) -> Any:
        text = self._chance.choice(_TEXTS)
        return self._chance.choice((None, True, self._number(), text, [self._number()], {"a": text}, {}, []))


def hostile_fields(seed: int, number: int) -> dict[str, Any]:
    """The fields for a seed and number, within the size limit of a body."""
    draws = (Hostile(random.Random(f"{seed}-{number}{'+' * again}")).fields() for again in count())
    return next(fields for fields in draws if len(json.dumps(fields)) < _LARGEST)
