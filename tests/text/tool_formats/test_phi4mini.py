"""Tool calls of Phi-4-mini."""

import pytest

from genai_server.answer_parts import Content, ToolCallStart
from tests.text.parsing import call, parse

NOW = '{"name": "now", "arguments": {}}'
WEATHER = '{"name": "get_weather", "arguments": {"city": "]\\"ü😀", "o": [{}]}}'
CALLS = call(0, "now", "{}") + call(1, "get_weather", '{"city": "]\\"ü😀", "o": [{}]}')


@pytest.mark.parametrize(
    "text",
    [
        f"<|tool_call|>[{NOW}, {WEATHER}]<|/tool_call|>",
        f"<|tool_call|>[\n {NOW},\n {WEATHER}\n]",
        f"<|tool_call|>{NOW}<|/tool_call|>\n<|tool_call|>{WEATHER}<|/tool_call|>\n",
        f"functools[{NOW}, {WEATHER}]",
    ],
)
def test_calls_are_parsed(text: str) -> None:
    assert parse(text, "phi4mini") == CALLS


def test_text_may_come_before_calls() -> None:
    text = f"Off I go for it.\n<|tool_call|>[{NOW}, {WEATHER}]<|/tool_call|>"
    assert parse(text, "phi4mini") == [Content("Off I go for it."), *CALLS]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    assert parse('<|tool_call|>[{"name": "now"}]<|/tool_call|>', "phi4mini") == call(0, "now", "{}")


@pytest.mark.parametrize(
    "text",
    [
        '<|tool_call|>[{"name": "unknown", "arguments": {}}]<|/tool_call|>',
        "<|tool_call|>[]<|/tool_call|>",
        "functools is a module of functions",
        "functools.reduce(f, [1])",
        NOW,
        "f",
        "<|tool",
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(text, "phi4mini") == [Content(text)]


def test_invalid_second_call_is_content() -> None:
    parts = parse(f'functools[{NOW}, {{"name": "unknown"}}]', "phi4mini")
    assert parts == [*call(0, "now", "{}"), Content(', {"name": "unknown"}]')]


def test_cut_call_keeps_its_streamed_parts() -> None:
    assert parse('<|tool_call|>[{"name": "now"', "phi4mini") == [ToolCallStart(0, "0", "now")]
    assert parse('functools[{"name": "now", "arguments": {"a": 1', "phi4mini") == call(0, "now", '{"a": 1')
