"""What all training text is made from: tables, lists of words, and frames of sentences.

A frame is a small notation for many phrasings: `(Tell me|Say) the capital of {country}( please|).` stands for four;
`{country}` is a slot.
"""

from __future__ import annotations

import functools
import random
import re
import tomllib
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("words")
Piece = str | list["Sequence"]
Sequence = list[Piece]


def table(name: str) -> dict[str, Any]:
    """The table of this name. The order of its entries is that of the file."""
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def words(name: str) -> list[str]:
    """The list of words of this name."""
    return (_FOLDER / f"{name}.txt").read_text(encoding="ascii").split()


FACTS = table("facts")
CAPITALS: dict[str, str] = FACTS["capitals"]
ALIASES: dict[str, list[str]] = FACTS["aliases"]
# What the server answers to: what people say that it `does`, and the `answer`, by topic.
ENDPOINTS: dict[str, dict[str, str]] = FACTS["endpoints"]
SETTINGS: dict[str, dict[str, str]] = FACTS["settings"]
FIRST_NAMES, OTHER_CITIES, NOUNS, VERBS, PARAMETERS, FILLERS = (
    str(FACTS[name]).split() for name in ("first_names", "other_cities", "nouns", "verbs", "parameters", "fillers")
)
CONSONANTS, VOWELS, CURRENCIES, LANGUAGES, DAYS = (
    str(FACTS[name]).split() for name in ("consonants", "vowels", "currencies", "languages", "days")
)


@functools.cache
def _parsed(frame: str) -> Sequence:
    """A frame as texts and choices between sequences of the same kind."""
    open_choices: list[list[Sequence]] = [[[]]]
    for piece in re.split(r"([(|)])", frame):
        if piece == "(":
            open_choices.append([[]])
        elif piece == "|":
            open_choices[-1].append([])
        elif piece == ")":
            choices = open_choices.pop()
            open_choices[-1][-1].append(choices)
        elif piece:
            open_choices[-1][-1].append(piece)
    (whole,) = open_choices
    return [whole]


def _write(sequence: Sequence, rng: random.Random) -> str:
    return "".join(piece if isinstance(piece, str) else _write(rng.choice(piece), rng) for piece in sequence)


def expand(frame: str, rng: random.Random) -> str:
    """One phrasing of a frame, its slots still open."""
    return _write(_parsed(frame), rng)


def fill(text: str, slots: dict[str, str]) -> str:
    """Put values into the slots of a phrasing."""
    for name, value in slots.items():
        text = text.replace("{" + name + "}", value)
    return text
