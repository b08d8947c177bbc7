"""Tool calls of Hermes and Qwen."""

import pytest

from genai_server.answer_parts import Content, ToolCallArguments, ToolCallStart
from tests.text.parsing import call, parse, parser, stream

ARGUMENTS = '{"city": "Oslo \\"\\u00e9\\n\\\\ é 😀", "days": [1, -2.5e3, {"a": {}}], "b": null}'

NOW = '{"name": "now"}'


def tagged(json: str) -> str:
    return f"<tool_call>\n{json}\n</tool_call>"


def test_call_is_parsed_with_unchanged_arguments() -> None:
    text = tagged(f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}')
    assert parse(text) == call(0, "get_weather", ARGUMENTS)


def test_newlines_around_calls_are_of_the_format() -> None:
    one, two = '{"name": "now", "arguments": {}}', '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    text = f"Let me see.\n\n{tagged(one)}\n{tagged(two)}\n"
    calls = call(0, "now", "{}") + call(1, "get_weather", '{"city": "Rome"}')
    assert parse(text) == [Content("Let me see."), *calls]


def test_text_after_a_call_keeps_its_space() -> None:
    parts = parse(f"One{tagged(NOW)}\n\nTwo\n")
    assert parts == [Content("One"), *call(0, "now", "{}"), Content("\n\nTwo\n")]


@pytest.mark.parametrize(
    "json",
    [
        '{"name": "now"}',
        '{"name":"now","arguments":{}}',
        '{ "arguments": {} , "name": "now" }',
        '{"type": "function", "id": "x", "name": "now", "parameters": null}',
        '{"name": "n\\u006fw", "arguments": "{}"}',
    ],
)
def test_a_call_may_be_written_in_several_ways(json: str) -> None:
    assert parse(tagged(json)) == call(0, "now", "{}")


def test_arguments_before_the_name_or_in_a_string_are_parsed() -> None:
    assert parse(tagged('{"arguments": {"city": 1}, "name": "now"}')) == call(0, "now", '{"city": 1}')
    assert parse(tagged('{"name": "now", "arguments": "{\\"a\\": \\"b\\"}"}')) == call(0, "now", '{"a": "b"}')


@pytest.mark.parametrize(
    "text",
    [
        tagged('{"name": "unknown", "arguments": {}}'),
        tagged('{"arguments": {}}'),
        tagged('{"name": 1, "arguments": {}}'),
        tagged('{"function": "now"}'),
        tagged("now()"),
        tagged('{"name": "now'),
        tagged("[]"),
        "<tool_call>",
        "<tool_calls>\n",
        "a < b <tool> \n <",
        '{"name": "now", "arguments": {}}',
        '<tool_call><tool_call>{"name": "unknown"}',
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(f"A\n{text}\n") == [Content(f"A\n{text}\n")]


def test_call_after_an_invalid_one_is_found() -> None:
    assert parse(f"<tool_call> {tagged(NOW)}") == [Content("<tool_call> "), *call(0, "now", "{}")]


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ('{"name": "now", "arguments": {"a": foo}}', '{"a": ', "foo}}\n</tool_call>"),
        ('{"name": "now", "arguments": {"a": 1}, "x": 2}', '{"a": 1}', ', "x": 2}\n</tool_call>'),
        ('{"name": "now", "arguments": {"a": 1}} {}', '{"a": 1}', " {}\n</tool_call>"),
    ],
)
def test_broken_call_continues_as_content(text: str, arguments: str, rest: str) -> None:
    assert parse(tagged(text)) == [*call(0, "now", arguments), Content(rest)]


def test_arguments_that_are_not_an_object_are_content() -> None:
    parts = parse(tagged('{"name": "now", "arguments": [1]}'))
    assert parts == [ToolCallStart(0, "0", "now"), Content(', "arguments": [1]}\n</tool_call>')]


@pytest.mark.parametrize("cut", ['{"a": "b', '{"a": 12', '{"a": tru', '{"a": "\\u00', "{", '{"a": 1}'])
def test_an_answer_that_is_cut_in_the_arguments_ends_them(cut: str) -> None:
    assert parse('<tool_call>\n{"name": "now", "arguments": ' + cut) == call(0, "now", cut)


def test_answer_cut_behind_the_name_has_a_call_without_arguments() -> None:
    assert parse('Hm\n<tool_call>\n{"name": "now", "argu') == [Content("Hm"), ToolCallStart(0, "0", "now")]


def test_an_answer_that_is_cut_in_the_name_is_content() -> None:
    text = 'Hm\n<tool_call>\n{"name": "no'
    assert parse(text) == [Content(text)]


@pytest.mark.parametrize("end", ["", "\n", "\n</tool_", "</tool_call>"])
def test_the_closing_tag_may_be_cut_or_missing_at_the_end(end: str) -> None:
    assert parse('<tool_call>\n{"name": "now", "arguments": {}}' + end) == call(0, "now", "{}")


def test_call_is_streamed_as_it_arrives() -> None:
    pieces = [
        "Hi ",
        "\n<tool",
        "_call>\n",
        '{"name": "now"',
        ', "arguments": {"a',
        '": "b',
        'c"}',
        "}\n</tool_call>",
        "\n",
    ]
    assert stream(parser(), pieces) == [
        [Content("Hi")],
        [],
        [],
        [ToolCallStart(0, "0", "now")],
        [ToolCallArguments(0, '{"a')],
        [ToolCallArguments(0, '": "b')],
        [ToolCallArguments(0, 'c"}')],
        [],
        [],
        [],
    ]


def test_content_is_held_only_while_it_can_begin_a_call() -> None:
    streamed = stream(parser(), ["a", " <", "tool", "x", " ", "y"])
    assert streamed == [[Content("a")], [], [], [Content(" <toolx")], [], [Content(" y")], []]
