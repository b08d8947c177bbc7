"""Calls written like the models write them are parsed as the same calls."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tagged import Tagged
from genai_server.text.tool_formats.tool_format import Call
from tests.text.parsing import NAMES, answer_of, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(Call, st.sampled_from(NAMES), st.dictionaries(st.sampled_from(["city", "é", "x-y"]), VALUES))


# The others write bare texts, whose meaning needs a schema (test_tagged.py).
JSON_FORMATS = sorted(name for name, form in TOOL_FORMATS.items() if not isinstance(form, Tagged))


@pytest.mark.parametrize("form", JSON_FORMATS)
@given(calls=st.lists(CALLS, min_size=1, max_size=3))
def test_written_calls_are_parsed_back(form: str, calls: list[Call]) -> None:
    starts, arguments = _parsed(TOOL_FORMATS[form].write_calls(calls), form)
    assert starts == [call.name for call in calls]
    assert arguments == [call.arguments for call in calls]


def _parsed(text: str, form: str) -> tuple[list[str], list[Any]]:
    answer = answer_of(parse(text, form))
    calls = answer.tool_calls
    assert answer.blocks == calls
    return [call.name for call in calls], [json.loads(call.arguments) for call in calls]
