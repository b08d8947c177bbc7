"""Sentences by topic: texts of one topic mean something alike, texts of two do not."""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import facts
from .frames import expand
from .tables import table


@dataclass(frozen=True)
class Topic:
    """Queries and texts of one topic."""

    name: str
    queries: tuple[str, ...]
    texts: tuple[str, ...]


def topics() -> list[Topic]:
    """All topics: the countries, everyday things, and what the server answers to."""
    known = table("topics")
    found = []
    for country, capital in facts.CAPITALS.items():
        names = [country, *facts.ALIASES.get(country, ())]
        queries, texts = (_filled(known["country"][kind], names, capital) for kind in ("queries", "texts"))
        found.append(Topic(country, tuple(queries), tuple(texts)))
    for name, topic in known["topics"].items():
        found.append(Topic(name, tuple(topic["queries"]), tuple(topic["texts"])))
    rng = random.Random(0)
    for answers, kind in ((facts.ENDPOINTS, "endpoint"), (facts.SETTINGS, "setting")):
        for name, said in answers.items():
            asked = {f"Which {kind} {expand(said['does'], rng)}?" for _ in range(24)}
            answer = said["answer"]
            found.append(Topic(name, tuple(sorted(asked)), (answer, answer.rstrip("."), f"In short: {answer}")))
    return found


def _filled(frames: list[str], names: list[str], capital: str) -> list[str]:
    return [frame.format(country=name, capital=capital) for frame in frames for name in names]


def is_held_out(text: str) -> bool:
    """Whether a text is left out of training, to be asked for in the evaluation."""
    return sum(text.encode()) % 11 == 0
