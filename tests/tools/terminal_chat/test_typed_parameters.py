"""Fields that `/set` changes."""

import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.typed_parameters import parse


def test_a_value_has_the_kind_of_its_field() -> None:
    assert (parse("temperature", "0.5"), parse("max_tokens", "7"), parse("stop", "7")) == (0.5, 7, "7")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("temprature", "1", 'there is no setting "temprature"; did you mean temperature?'),
        ("zzz", "1", 'there is no setting "zzz" \\(known: temperature, '),
        ("temperature", "hot", 'temperature must be a number, not "hot"'),
        ("seed", "1.5", 'seed must be a whole number, not "1.5"'),
    ],
)
def test_a_wrong_name_or_value_is_refused_with_what_is_right(name: str, text: str, message: str) -> None:
    with pytest.raises(ChatFailed, match=message):
        parse(name, text)
