"""Tool calls of Granite 3."""

import pytest

from genai_server.answer_parts import Content, ToolCallStart
from tests.text.parsing import assert_cuts_change_nothing, call, parse

NOW = '{"name": "now", "arguments": {}}'
WEATHER = '{"name": "get_weather", "arguments": {"city": "]\\"ü😀", "o": [{}]}}'
CALLS = call(0, "now", "{}") + call(1, "get_weather", '{"city": "]\\"ü😀", "o": [{}]}')


@pytest.mark.parametrize("marker", ["<|tool_call|>", "<|tool_call|> ", "<tool_call>"])
def test_calls_are_parsed(marker: str) -> None:
    assert parse(f"I look. {marker}[{NOW}, {WEATHER}]\n", "granite") == [Content("I look."), *CALLS]


@pytest.mark.parametrize(
    "text",
    [
        '<|tool_call|>[{"name": "unknown", "arguments": {}}]',
        "<|tool_call|>[]",
        "<|tool_call|>",
        f"[{NOW}]",
        "functools[",
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(text, "granite") == [Content(text)]


def test_cut_call_keeps_its_streamed_parts() -> None:
    assert parse('<|tool_call|>[{"name": "now"', "granite") == [ToolCallStart(0, "0", "now")]


def test_cuts_change_nothing() -> None:
    assert_cuts_change_nothing(f"a <|tool_call|>[{NOW}, {WEATHER}] b", "granite")
    assert_cuts_change_nothing(f"<|tool_call|>[{NOW}]", "granite", pairs=True)
