"""Hostile grammars are reproducible, of all kinds, and can be sent."""

import json
from collections import Counter

from _fuzz.hostile_grammars import hostile_fields


def test_fields_are_determined_by_seed_and_number() -> None:
    first = [json.dumps(hostile_fields(1, number)) for number in range(200)]
    assert [json.dumps(hostile_fields(1, number)) for number in reversed(range(200))] == first[::-1]
    assert len(set(first)) > 150


def test_there_are_all_kinds() -> None:
    made = [hostile_fields(1, number) for number in range(400)]
    kinds = Counter(kind for fields in made for kind in (fields.get("structured_outputs") or fields))
    assert set(kinds) == {"response_format", "json", "regex", "grammar", "choice", "tools", "tool_choice"}
    text = json.dumps(made)
    for edge in (2**31, 2**32, 2**63, -(2**63), 2**64, 10**40):
        assert str(edge) in text
