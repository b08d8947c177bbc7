"""Tool calls of Llama in JSON."""

import pytest

from genai_server.answer_parts import Content, ToolCallStart
from tests.text.parsing import call, parse

WEATHER = '{"name": "get_weather", "parameters": {"city": "Oslo", "o": {"p": "\\"ü😀"}}}'
WEATHER_CALL = ("get_weather", '{"city": "Oslo", "o": {"p": "\\"ü😀"}}')
NOW = '{"name": "now", "parameters": {}}'


@pytest.mark.parametrize(
    "text",
    [
        WEATHER,
        f"<|python_tag|>{WEATHER}",
        f"<|python_start|>{WEATHER}<|python_end|>",
        f"\n\n{WEATHER}\n",
        '{\n    "type": "function",\n    "name": "get_weather",\n    "parameters": ' + WEATHER_CALL[1] + "\n}",
        WEATHER.replace("parameters", "arguments"),
    ],
)
def test_call_is_parsed(text: str) -> None:
    assert parse(text, "llama3_json") == call(0, *WEATHER_CALL)


@pytest.mark.parametrize("separator", [";", "; ", "\n", "", " ;\n", "<|python_tag|>"])
def test_several_calls_follow_each_other(separator: str) -> None:
    parts = parse(f"{NOW}{separator}{WEATHER}", "llama3_json")
    assert parts == call(0, "now", "{}") + call(1, *WEATHER_CALL)


@pytest.mark.parametrize("before", ["I look.\n\n", "I look. <|python_tag|>"])
def test_text_may_come_before_a_call(before: str) -> None:
    assert parse(before + NOW, "llama3_json") == [Content("I look."), *call(0, "now", "{}")]


def test_a_call_without_parameters_has_an_empty_object() -> None:
    assert parse('{"name": "now"}', "llama3_json") == call(0, "now", "{}")


@pytest.mark.parametrize(
    "text",
    [
        f"Say {NOW}",
        '{"name": "unknown", "parameters": {}}',
        '{"city": "Oslo"}',
        '<|python_tag|>brave_search.call(query="x")',
        "<|python_tag|>print(7)\n",
        '{"name": "no',
        "{",
        "a <| b {}",
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(text, "llama3_json") == [Content(text)]


def test_text_after_a_call_is_content() -> None:
    assert parse(f"{NOW}; fine", "llama3_json") == [*call(0, "now", "{}"), Content("; fine")]


def test_cut_call_keeps_its_streamed_parts() -> None:
    assert parse('{"name": "now", "para', "llama3_json") == [ToolCallStart(0, "0", "now")]
    assert parse('{"name": "now", "parameters": {"a": [1', "llama3_json") == call(0, "now", '{"a": [1')
