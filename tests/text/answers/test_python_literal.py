"""Python literals in a text, and their JSON equivalents."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genai_server.text.answers.lookahead import Lookahead, read_now
from genai_server.text.answers.python_literal import read_literal, to_json

untimed = settings(deadline=None)
LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def read(text: str) -> str | None:
    source = Lookahead()
    source.append(text)
    source.end()
    return read_now(read_literal(source))


@untimed
@given(LITERALS, st.sampled_from([",", ")"]))
def test_a_literal_is_read_to_its_end_and_means_the_same_in_json(value: Any, end: str) -> None:
    literal = read(repr(value) + end + "x")
    assert literal == repr(value)
    assert json.loads(to_json(literal) or "") == value


@pytest.mark.parametrize(
    "literal", ["'a,)'", '"""a "quoted", b"""', "'it\\'s)'", "'''a\nb'''", "[1, (2, 3)]", "{'a': ')'}"]
)
def test_brackets_and_strings_hide_commas_and_parentheses(literal: str) -> None:
    assert read(f"{literal}, x=1)") == literal


@pytest.mark.parametrize("text", ["[1, 2", "'a", "'a\nb')", "1]", "", "x"])
def test_incomplete_literal_is_not_read(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("True", True),
        ("true", True),
        ("[null, None]", [None, None]),
        ("-1.5", -1.5),
        ("(1, 'a')", [1, "a"]),
        ("'Zürich'", "Zürich"),
        (r"'\d'", r"\d"),
        (r"'\ud83d\ude00'", "😀"),
        ('"a" "b"', "ab"),
        ("[1e999]", [float("inf")]),
    ],
)
def test_literals_mean_json(literal: str, value: Any) -> None:
    assert json.loads(to_json(literal) or "") == value


@pytest.mark.parametrize(
    "literal", ["", "x", "f()", "{1, 2}", "b'a'", "1j", "...", "f'{x}'", "1 + 'a'", "'a", "-" * 10_000 + "1"]
)
def test_literal_without_a_json_equivalent_is_refused(literal: str) -> None:
    assert to_json(literal) is None
