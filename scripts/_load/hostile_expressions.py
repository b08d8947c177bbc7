"""Values and regular expressions at the limits of a compiler."""

from __future__ import annotations

import math
import random
from typing import Any

_POWERS = tuple(2**bits for bits in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63, 64, 65, 70, 100))
_INTEGERS = (0, 1, 2, 9, 10, 99, 1000, *_POWERS, 10**18, 10**19, 10**40, 10**308, 10**400)
_DOUBLES = (
    *(0.0, 0.1, 0.5, 1e-9, 1e15, 1e16, 1e17, 1e19, 1e22, 1e100, 1e308, math.nextafter(math.inf, 0)),
    *(5e-324, 2.2250738585072014e-308, math.nextafter(1, 2), math.nextafter(1, 0), 2.0**53 + 2, 2.0**63, 2.0**64),
)
_COUNTS = (0, 1, 2, 3, 100, 1000, 1001, 65535, 65536, 100_000, *(power + step for power in _POWERS for step in (-1, 0)))
_TEXTS = ("a", "é", "\U0010ffff", "\x00", '"', "\\", "/", "\n", "a" * 300, "", "\u2028", "</s>", "<|end|>")


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
