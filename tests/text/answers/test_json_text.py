"""Readers of JSON text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genai_server.text.answers.json_text import is_json, read_value
from genai_server.text.answers.lookahead import Lookahead, read_now

untimed = settings(deadline=None)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


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
    source = Lookahead()
    source.append(text)
    source.end()
    assert read_now(read_value(source)) is False
    assert source.at == valid
