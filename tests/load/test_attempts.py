"""Invalid requests are reproducible, and are sent unchanged."""

import json
import random
from collections import Counter

from _fuzz.attempts import attempt, complaint_about
from _fuzz.corpus import BODIES
from _fuzz.mutations import mutated_body, written

PATHS = sorted(BODIES)


def test_attempt_is_determined_by_seed_and_number() -> None:
    first = [attempt(1, number, PATHS) for number in range(300)]
    assert [attempt(1, number, PATHS) for number in reversed(range(300))] == first[::-1]
    assert attempt(2, 0, PATHS) != first[0]


def test_attempts_cover_all_paths_and_some_are_valid() -> None:
    attempts = [attempt(1, number, PATHS) for number in range(len(PATHS) * 20)]
    assert set(Counter(made.path for made in attempts).values()) == {20}
    valid = 0
    for made in attempts:
        try:
            valid += isinstance(json.loads(made.data.partition(b"\r\n\r\n")[2]), dict)
        except (ValueError, RecursionError):
            continue
    assert 0 < valid < len(attempts)


def test_bodies_stay_valid_when_nothing_is_changed() -> None:
    for bodies in BODIES.values():
        for body in bodies:
            assert json.loads(written(body)) == body


def test_raw_values_are_written_unchanged() -> None:
    assert written({"a": "\x00raw:NaN", "b": ["\x00raw:[[[", 1]}) == b'{"a": NaN, "b": [[[[, 1]}'
    assert written({"a": 1}, duplicates=True) == b'{"a": 1, "a": 1}'


def test_mutations_leave_the_body_that_they_begin_with_alone() -> None:
    before = json.dumps(BODIES["/v1/chat"])
    for number in range(500):
        mutated_body(random.Random(number), BODIES["/v1/chat"][number % 5])
    assert json.dumps(BODIES["/v1/chat"]) == before


def test_internal_errors_and_unexplained_refusals_are_reported() -> None:
    refusal = b'{"error": {"message": "no"}}'
    for status, body in ((400, refusal), (503, refusal), (200, b"data: x")):
        assert complaint_about(status, body) is None
    internal = b'data: {"error": {"message": "internal error; see"}}'
    for status, body in ((500, refusal), (200, internal), (400, b"{}")):
        assert complaint_about(status, body) is not None
