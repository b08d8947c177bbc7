"""Sentences for the demo model for speech: a closed vocabulary of commands, numbers, colors, days, cities and names."""

from __future__ import annotations

import re
import zlib
from random import Random

from .tables import table

_SPEECH = table("speech")
ONES, TEENS, TENS = (str(_SPEECH[name]).split() for name in ("ones", "teens", "tens"))
# What fills the slots of templates, by the slot.
WORDS: dict[str, list[str]] = _SPEECH["words"] | {"hour": [*ONES[1:], *TEENS[:3]]}
TEMPLATES: list[str] = _SPEECH["templates"]


def number(value: int) -> str:
    """In words, from 0 to 100."""
    if value == 100:
        return "one hundred"
    if value < 20:
        return (ONES + TEENS)[value]
    tens, ones = divmod(value, 10)
    return TENS[tens - 2] + (f" {ONES[ones]}" if ones else "")


def sentence(rng: Random) -> str:
    """One of the training text."""
    while True:
        template = rng.choice(TEMPLATES)
        text = re.sub(r"{(\w+)}", lambda found: _fill(found[1], rng), template)
        text = text[0].upper() + text[1:]
        # One in twenty sentences is left to evaluations, but none that is a template as it stands.
        if text in TEMPLATES or zlib.crc32(text.encode()) % 20:
            return text


def _fill(slot: str, rng: Random) -> str:
    if slot == "number":
        return number(rng.choice((rng.randint(0, 20), rng.randint(20, 100))))
    if slot == "digits":
        return " ".join(rng.choice(ONES) for _ in range(rng.randint(3, 8)))
    if slot == "time":
        hour, form = rng.choice(WORDS["hour"]), rng.random()
        if form < 0.4:
            return hour
        return f"{hour} {rng.choice(WORDS['minute' if form < 0.7 else 'half'])}"
    return rng.choice(WORDS[slot])


def plain_words(text: str) -> list[str]:
    """What a comparison counts: words without case and punctuation."""
    return re.sub(r"[^a-z ]", "", text.lower()).split()
