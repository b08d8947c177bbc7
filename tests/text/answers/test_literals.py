"""Readers of JSON text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genai_server.text.answers.parsing import Lookahead, is_json, read_complete, read_literal, read_value, to_json

untimed = settings(deadline=None)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def _whole(text: str) -> Lookahead:
    """A text after which nothing comes."""
    source = Lookahead()
    source.append(text)
    source.end()
    return source


@untimed
@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_json_written_by_python_is_valid(value: Any, indent: int | None, ascii_only: bool) -> None:
    assert is_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only))


@untimed
@given(st.text(alphabet='{}[]",:\\u0a1e+-. truefalsn\n', max_size=12))
def test_json_is_what_python_reads(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        assert not is_json(text)
    else:
        assert is_json(text)


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", '"\t"', "[1,]", '{"a":1,}', "01", "1.", "{'a': 1}", "tru", '"\\x"']
)
def test_pythons_extensions_are_not_json(text: str) -> None:
    assert not is_json(text)


def test_depth_has_no_limit() -> None:
    assert is_json("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(("text", "valid"), [('{"a": foo}', 6), ('{"a": 1 2}', 8), ('{"a" 1}', 5), ('["a\nb"]', 3)])
def test_reading_stops_where_a_text_stops_being_json(text: str, valid: int) -> None:
    source = _whole(text)
    assert read_complete(read_value(source)) is False
    assert source.at == valid


def read(text: str) -> str | None:
    return read_complete(read_literal(_whole(text)))


@untimed
@given(JSON, st.sampled_from([",", ")"]))
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
