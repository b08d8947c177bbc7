"""Numbers of schemas: followed exactly, or refused with the field, the limit and the value."""

from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.grammars import grammar
from tests.text.guided import assert_answers, followed

LEAST, LARGEST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 10**40, "maximum": 10**60}, "minimum must be at most 9223372036854775807"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "minimum must be .*; given 9007199254740993"),
        ({"type": "integer", "maximum": 10**18 - 1}, "maximum must be .*; given 999999999999999999"),
        ({"type": "integer", "maximum": -(2**70)}, "maximum must be at least -9223372036854774784"),
        ({"type": "integer", "minimum": LEAST, "maximum": LEAST}, "maximum must be at least"),
        ({"type": "number", "minimum": 1e20}, "minimum must be below 1000000000000000000,.*; given 1e"),
        ({"type": "number", "maximum": 2**53 + 1}, "maximum must be .*; given 9007199254740993"),
        ({"type": "number", "minimum": -1.3443715744701602e17}, "minimum must be .*; given -1.344"),
        ({"enum": [{"a": [2**53 + 1]}]}, "numbers in enum .*; given 9007199254740993"),
        ({"const": 10**40}, "numbers in const .*; given 10{40}"),
        ({"const": -2.7204787506504856e-07}, "numbers in const"),
        ({"const": -689290958371267.2}, "numbers in const"),
        ({"type": "number", "exclusiveMaximum": -(10**400)}, "exclusiveMaximum must be below"),
        ({"type": "integer", "multipleOf": 10**400}, "multipleOf must be"),
        ({"type": "number", "multipleOf": 0.07}, "multipleOf must be .*; given 0.07"),
        ({"minimum": float("nan")}, "minimum must be a number; given nan"),
        ({"type": "integer", "minimum": 10**400}, r"minimum must be .*; given 1000.*… \(401 characters\)"),
    ],
)
@pytest.mark.parametrize("within", ["alone", "a property", "a list"])
def test_number_beyond_the_limits_is_refused(schema: dict[str, Any], words: str, within: str) -> None:
    around = {"alone": schema, "a property": {"properties": {"a": schema}}, "a list": {"anyOf": [schema]}}
    with pytest.raises(InvalidField, match=f"^response_format cannot be used: {words}") as caught:
        grammar.json_schema(around[within])
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("high", [LARGEST, 2**63, 2**64 - 1, 10**60])
@pytest.mark.parametrize("low", [LEAST, LEAST - 1, -(2**70), -(10**60)])
def test_integers_of_64_bits_are_followed(low: int, high: int) -> None:
    built = followed({"type": "integer", "minimum": low, "maximum": high})
    good = (0, -1, LARGEST, LARGEST - 1, -(10**18), LEAST + 1024)
    assert_answers(built, map(str, good), map(str, (LARGEST + 1, LEAST - 1)))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "0.0", "-0", "0.51"]),
        ({"exclusiveMinimum": -1, "maximum": 1474}, ["-0.5", "1474"], ["-1", "-1.0", "-1.5"]),
        ({"exclusiveMaximum": 1.0}, ["0.9", "0.999", "-5"], ["1", "1.00"]),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0", "-0", "0.0"]),
        ({"minimum": 5, "exclusiveMinimum": True}, ["6", "5.5"], ["5", "5.0"]),
        ({"exclusiveMinimum": 2**53}, ["9007199254740994"], ["9007199254740992"]),
        ({"type": "string", "minimum": 10**40}, ['"a"'], []),
        ({"type": "integer", "minimum": 0}, [str(2**64 - 1)], ["-1"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"type": "number", "maximum": 0.5}]}, ["0.25"], ["0"]),
        # usual literals
        (
            {"enum": [1, -1, 0.1, 2.5, 1e15, 1.0, 2**53 - 1, LARGEST, 10**18]},
            ["1", "0.1", "2.5", str(LARGEST), str(2**53 - 1), str(10**18)],
            [],
        ),
        # a number that is meant twice
        (
            {"minimum": -433097978241799, "maximum": -433097978241799, "type": ["number", "boolean", "integer"]},
            ["-433097978241799", "true"],
            ["1"],
        ),
    ],
)
def test_numbers_are_followed_exactly(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert_answers(followed({"type": "number", **schema}), good, bad)


def test_joined_multiples_are_limited_together() -> None:
    with pytest.raises(InvalidField, match="product of all multipleOf"):
        followed({"allOf": [{"type": "number", "multipleOf": 3e9}, {"type": "number", "multipleOf": 0.01}]})


@pytest.mark.parametrize("kind", ["integer", ["integer", "null"]])
def test_an_integer_without_any_bound_ends_within_64_bits(kind: Any) -> None:
    built = followed({"type": kind})
    assert_answers(built, map(str, (0, -7, LARGEST, LEAST + 1024)), map(str, (LARGEST + 1, 10**30)))
