"""Numbers in options, and the words for wrong ones."""

import argparse
from collections.abc import Callable

import pytest

from genai_server.cli.option_types import number_from, positive


@pytest.mark.parametrize(
    ("parse", "text", "number"),
    [(positive, "1", 1), (number_from(0), "0", 0.0), (number_from(0.5, 2), "2", 2.0), (number_from(0), "1e3", 1000.0)],
)
def test_a_number_within_its_limits_is_taken(parse: Callable[[str], float], text: str, number: float) -> None:
    assert parse(text) == number


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        (positive, "0", "0 is not a whole number of at least 1"),
        (positive, "1.5", "1.5 is not a whole number of at least 1"),
        (number_from(0), "-1", "-1 is not 0 or more"),
        (number_from(0), "inf", "inf is not 0 or more"),
        (number_from(0), "nan", "nan is not 0 or more"),
        (number_from(0.5, 2), "2.1", "2.1 is not between 0.5 and 2"),
        (number_from(0.5, 2), "x", "x is not between 0.5 and 2"),
    ],
)
def test_a_wrong_number_is_refused_with_its_limits(parse: Callable[[str], float], text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        parse(text)
    assert str(refused.value) == reason
