"""Which bodies of Ollama's API are accepted, and the names of refused fields."""

import math

import pytest

from genai_server.apis.ollama.schemas import nanoseconds, seconds


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (0, 0),
        (300, 300),
        (1.5, 1.5),
        ("0", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("+2s", 2),
        (-1, math.inf),
        ("-1m", math.inf),
    ],
)
def test_a_number_is_seconds_and_a_text_has_gos_units(given: float | str, found: float) -> None:
    assert seconds(given) == pytest.approx(found)


@pytest.mark.parametrize("given", ["", "5", "m", "5 m", "5x", "1h-30m", "infinity", "٥m"])
def test_another_text_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="5m"):
        seconds(given)


def test_a_duration_is_never_zero_because_clients_divide_by_it() -> None:
    assert (nanoseconds(0), nanoseconds(1.5)) == (1, 1_500_000_000)
