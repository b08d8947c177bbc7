"""Which values are weighed, and that weighing itself ends in time."""

import pytest

from genai_server.text.prompts import template_meter
from genai_server.text.prompts.template_meter import Meter, TooCostly


def nested(depth: int) -> list[object]:
    """A list that contains the same list twice, and so on: few objects, reached 2**depth times."""
    value: list[object] = []
    for _ in range(depth):
        value = [value, value]
    return value


def test_repeated_value_is_counted_twice() -> None:
    assert Meter(100).weigh(nested(3)) == 2 + 2 * 2 + 4 * 2
    with pytest.raises(TooCostly, match="more than 13 characters"):
        Meter(13).weigh(nested(3))


@pytest.mark.parametrize("value", [nested(12), [[]] * 5000, {"a": ["x"] * 5000}, ("x",) * 5000])
def test_the_time_ends_while_a_value_is_weighed(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "MAX_SECONDS", -1)
    with pytest.raises(TooCostly, match="more than -1 s"):
        Meter(1_000_000).weigh(value)
