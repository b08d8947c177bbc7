"""Regular expressions at random, as schemas have them (ECMA-262 with the flag u)."""

from __future__ import annotations

import random

# They include characters on which dialects of regular expressions differ.
_ATOMS = [
    *"abc01 -_é",
    "😀",
    ".",
    ".",
    r"\d",
    r"\w",
    r"\s",
    r"\D",
    r"\W",
    r"\S",
    "[a-c]",
    "[^a]",
    "[0-9]",
    "[é-ü]",
    "[😀-😎]",
]
_ATOMS += [
    r"[\s\S]",
    r"[^\s]",
    r"[^\S]",
    r"[\w.-]",
    r"[^\W_]",
    r"[\d\-x]",
    "[&&]",
    "[a&&b]",
    "[a~~b]",
    r"[a\-\-b]",
    "[a-c.-]",
]
_ATOMS += [
    r"\.",
    r"\/",
    "/",
    r"\n",
    r"\t",
    r"\x41",
    r"\u00e9",
    r"\u{1F600}",
    r"\\",
    r"\$",
    r"\^",
    r"\*",
    "[.]",
    "[$^]",
    r"[\]x]",
    '"',
]
_ATOMS += [
    r"\p{L}",
    r"\p{Lu}",
    r"\P{L}",
    "[-a]",
    "[a-]",
    r"[\n\r]",
    r"\ud83d\ude00",
    r"\v",
    r"\f",
    r"\0",
    r"\cA",
    "[^]",
    ":",
    "#",
    "<",
    "~",
]
_ODD = [
    "^",
    "$",
    r"\b",
    "(?=a)",
    "(?!b)",
    "[[]",
    "[[:alpha:]]",
    "[a-c&&[^b]]",
    r"\<",
    r"\A",
    r"\z",
    r"\a",
    "(?i)a",
    "(?<stop>ab)",
    "]",
    "{",
    "}",
]
_REPEATS = ["", "", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "*?", "+?", "{,2}"]


def pattern(chance: random.Random) -> str:
    """One pattern: anchored, half anchored, or anywhere in the text."""
    if chance.random() < 0.1:
        return chance.choice(_USUAL)
    inner = _alternation(chance, 0)
    return chance.choice(["", "^", "^"]) + inner + chance.choice(["", "$", "$"])


def _alternation(chance: random.Random, depth: int) -> str:
    return "|".join(_sequence(chance, depth) for _ in range(chance.choice([1, 1, 1, 2, 3])))


def _sequence(chance: random.Random, depth: int) -> str:
    return "".join(_piece(chance, depth) for _ in range(chance.randint(0 if depth else 1, 3)))


def _piece(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if kind < 0.03:
        return chance.choice(_ODD)
    if kind < 0.15 and depth < 2:
        inner = _alternation(chance, depth + 1)
        edges = chance.choice([("", "")] * 6 + [("^", ""), ("", "$")])
        atom = chance.choice(["({})", "(?:{})", "(?<n>{})"]).format(edges[0] + inner + edges[1])
    else:
        atom = chance.choice(_ATOMS)
    return atom + chance.choice(_REPEATS)


_USUAL = [
    r"^[a-z]{2,4}$",
    r"^\d{3}-\d{4}$",
    r"^(\([0-9]{3}\))?[0-9]{3}-[0-9]{4}$",
    r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
    r"^#?([a-fA-F0-9]{6}|[a-fA-F0-9]{3})$",
    r"^\+?[1-9]\d{1,14}$",
    r"^.+$",
    r"^\S+$",
    r"^(?!\s).+",
    r"\S",
    r"^[A-Za-z_][A-Za-z0-9_]*$",
    r"^(?!0)\d+$",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
    r"^[\w.+-]+$",
    r"^.{1,20}$",
    r"foo|bar",
    r"^foo|bar$",
    r"^$|^[a-z]+$",
    r"^(\d{4})-(0[1-9]|1[0-2])$",
    r"^v?\d+\.\d+\.\d+$",
    r"^[\u4e00-\u9fff]+$",
    r"^[\x20-\x7e]*$",
    r"^\p{L}[\p{L}\p{N} ]*$",
    r"^[^\x00-\x1f]*$",
    r"^[a-zA-Z0-9._%+\-]+@[a-zA-Z0-9.\-]+\.[a-zA-Z]{2,}$",
    r"^(GET|POST|PUT)$",
    r"^\$?\d+(\.\d{2})?$",
    r"^[^/\\]+$",
]
