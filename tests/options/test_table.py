"""Values: the accepted forms, and what the libraries receive."""

import pytest

from genai_server.options.table import Kind, Value, anything, arenas, choice, flag, number, shapes, size, text


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (flag(), True, "1"),
        (flag(), "0", "0"),
        (flag(), 1, "1"),
        (flag(), "False", "0"),
        (flag("True", "False"), "1", "True"),
        (number(), "7", "7"),
        (number(-1), -1, "-1"),
        (size(), "18446744073709551615", "18446744073709551615"),
        (choice("kSameAsRequested"), "ksameasrequested", "kSameAsRequested"),
        (choice("FP16", also={"half": "FP16"}), "HALF", "FP16"),
        (text(), "a b", "a b"),
        (anything(), True, "1"),
        (anything(), 0.5, "0.5"),
        (anything(), "BNSH", "BNSH"),
        (shapes(), "input_ids:1x1,mask:1x8", "input_ids:1x1,mask:1x8"),
        (arenas(), "cpu:0;gpu:1", "cpu:0;gpu:1"),
    ],
)
def test_a_value_becomes_the_librarys_text(kind: Kind, value: Value, expected: str) -> None:
    assert kind.text(value) == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (flag(), "maybe"),
        (flag(), 2),
        (number(), -1),
        (number(0, 5), 6),
        (number(), 2.5),
        (number(), True),
        (number(), "many"),
        (size(), 2**64),
        (choice("a", "b"), "c"),
        (text(), ""),
        (text(), 3),
        (anything(), ""),
        (shapes(), "input_ids=1x1"),
        (shapes(), "input_ids:1x"),
        (arenas(), "tpu:0"),
        (arenas(), "cpu"),
    ],
)
def test_another_value_is_refused_with_what_is_expected(kind: Kind, value: Value) -> None:
    with pytest.raises(ValueError, match="^expected ") as raised:
        kind.text(value)
    assert kind.expected in str(raised.value)
