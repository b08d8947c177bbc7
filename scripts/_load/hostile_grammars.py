"""Fields of a chat's body that constrain its answer by schemas, expressions and grammars at a compiler's limits."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import Any

from .hostile_schemas import Schemas

_TOKENS = ("<|end|>", "<|im_end|>", "<tool_call>", "<[0]>", "<[1-5]>", "<[65,66-70]>", "<[^1-5]>", "<[*]>", "<[1900]>")
_LARGEST = 1_000_000
_ODD_TOKENS = ("<[5-1]>", "<[4294967295]>", "<[99999999999999999999]>", "<[-1]>", "<[]>", "<||>", "<a b>")


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
