"""The small tables that all training text is made from, and that words/facts.toml has."""

from __future__ import annotations

from .tables import table

FACTS = table("facts")
CAPITALS: dict[str, str] = FACTS["capitals"]
ALIASES: dict[str, list[str]] = FACTS["aliases"]
# What the server answers to: what people say that it `does`, and the `answer`, by topic.
ENDPOINTS: dict[str, dict[str, str]] = FACTS["endpoints"]
SETTINGS: dict[str, dict[str, str]] = FACTS["settings"]
FIRST_NAMES, OTHER_CITIES, NOUNS, VERBS, PARAMETERS, FILLERS = (
    str(FACTS[name]).split() for name in ("first_names", "other_cities", "nouns", "verbs", "parameters", "fillers")
)
