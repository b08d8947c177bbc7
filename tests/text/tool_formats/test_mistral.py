"""Tool calls of Mistral's models."""

import pytest

from genai_server.answer_parts import Content, ToolCallStart
from genai_server.text.tool_formats.registry import TOOL_FORMATS
from tests.text.parsing import call, parse

ARGUMENTS = '{"city": "Oslo \\"[ARGS] ü😀", "o": [{}]}'


@pytest.mark.parametrize(
    "text",
    [
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {ARGUMENTS}}}]',
        f'[TOOL_CALLS] [ {{"name": "get_weather", "arguments": {ARGUMENTS}, "id": "abcdefghi"}} ]',
        f'[TOOL_CALLS]{{"name": "get_weather", "arguments": {ARGUMENTS}}}',
        f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}",
        f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{ARGUMENTS}",
        f"[TOOL_CALLS]get_weather{ARGUMENTS}",
    ],
)
def test_call_is_parsed(text: str) -> None:
    assert parse(text, "mistral") == call(0, "get_weather", ARGUMENTS)


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS][{"name": "now"}, {"name": "get_weather", "arguments": {"a": 1}}]',
        '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"a": 1}',
    ],
)
def test_several_calls_are_parsed(text: str) -> None:
    assert parse(text, "mistral") == call(0, "now", "{}") + call(1, "get_weather", '{"a": 1}')


def test_text_may_come_before_a_call() -> None:
    assert parse("I look.[TOOL_CALLS]now[ARGS]{}", "mistral") == [Content("I look."), *call(0, "now", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]unknown[ARGS]{}",
        '[TOOL_CALLS][{"name": "unknown"}]',
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]now",
        "[TOOL_CALLS",
        "[TOOL_CALLS]",
        "a [1] [TOOL_X]",
        "now[ARGS]{}",
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(text, "mistral") == [Content(text)]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('[TOOL_CALLS]now[ARGS]{"a": [1', '{"a": [1'),
        ('[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}', '{"a": 1}'),
    ],
)
def test_cut_call_keeps_its_streamed_parts(text: str, arguments: str) -> None:
    assert parse(text, "mistral") == call(0, "now", arguments)


def test_a_call_that_is_cut_before_its_arguments_has_none() -> None:
    assert parse("[TOOL_CALLS]now[AR", "mistral") == [ToolCallStart(0, "0", "now")]


def test_ids_are_of_nine_letters_and_digits() -> None:
    id = TOOL_FORMATS["mistral"].new_id()
    assert len(id) == 9
    assert id.isalnum()
