"""Tool calls of Llama in JSON and in Python."""

import json

import pytest

from genai_server.answer_parts import Content, Part, ToolCallArguments, ToolCallEnd
from tests.text.parsing import begun, call, cut_call, parse, parser, stream

ARGUMENTS = '{"city": "Oslo", "o": {"p": "\\"ü😀"}}'
WEATHER = f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}'
NOW = '{"name": "now", "parameters": {}}'


@pytest.mark.parametrize(
    "text",
    [
        WEATHER,
        f"<|python_tag|>{WEATHER}",
        f"<|python_start|>{WEATHER}<|python_end|>",
        f"\n\n{WEATHER}\n",
        '{\n    "type": "function",\n    "name": "get_weather",\n    "parameters": ' + ARGUMENTS + "\n}",
        WEATHER.replace("parameters", "arguments"),
    ],
)
def test_json_call_is_parsed(text: str) -> None:
    assert parse(text, "llama3_json") == call(0, "get_weather", ARGUMENTS)


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        *(("llama3_json", f"{NOW}{between}{WEATHER}", ARGUMENTS) for between in (";", "; ", "\n", "", " ;\n")),
        ("llama3_json", f"{NOW}<|python_tag|>{WEATHER}", ARGUMENTS),
        ("pythonic", "[now(), get_weather(x=1)]", '{"x": 1}'),
        ("pythonic", "[now(),get_weather(x=1)]\n", '{"x": 1}'),
        ("pythonic", "<|python_start|>[now(), get_weather(x=1)]<|python_end|>", '{"x": 1}'),
        ("pythonic", "<|python_tag|>[ now() , get_weather(x=1) ]", '{"x": 1}'),
        ("pythonic", "[now()]\n[get_weather(x=1)]", '{"x": 1}'),
    ],
)
def test_several_calls_are_parsed(form: str, text: str, arguments: str) -> None:
    assert parse(text, form) == call(0, "now", "{}") + call(1, "get_weather", arguments)


@pytest.mark.parametrize(
    ("form", "text", "before", "after"),
    [
        ("llama3_json", f"I look.\n\n{NOW}", "I look.", ""),
        ("llama3_json", f"I look. <|python_tag|>{NOW}", "I look.", ""),
        ("llama3_json", '{"name": "now"}', "", ""),
        ("llama3_json", f"{NOW}; fine", "", "; fine"),
        ("pythonic", "Well.\n[now()]\nSo.", "Well.", "\nSo."),
    ],
)
def test_text_around_a_call_is_content(form: str, text: str, before: str, after: str) -> None:
    around = [[Content(part)] if part else [] for part in (before, after)]
    assert parse(text, form) == [*around[0], *call(0, "now", "{}"), *around[1]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('city="Oslo"', '{"city": "Oslo"}'),
        ("city='Oslo', days = 3", '{"city": "Oslo", "days": 3}'),
        ('from="a, b)", class=["x", {\'y\': (1, None)}]', '{"from": "a, b)", "class": ["x", {"y": [1, null]}]}'),
        ("on=True, off=false, none=None", '{"on": true, "off": false, "none": null}'),
        ('t="""a\n"b\\""""', '{"t": "a\\n\\"b\\""}'),
        ("city='Zürich 😀', t='it\\'s'", '{"city": "Zürich 😀", "t": "it\'s"}'),
        ("\n  x=-1.5e3,\n  y=+2\n", '{"x": -1.5e3, "y": 2}'),
        ('**{"a": 1, "b": {}}', '{"a": 1, "b": {}}'),
        ('a=1, **{"b": 2}', '{"a": 1, "b": 2}'),
        ("", "{}"),
        ("**{}", "{}"),
    ],
)
def test_keyword_arguments_become_an_object(arguments: str, expected: str) -> None:
    assert parse(f"[get_weather({arguments})]", "pythonic") == call(0, "get_weather", expected)
    json.loads(expected)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama3_json", f"Say {NOW}"),
        ("llama3_json", '{"name": "unknown", "parameters": {}}'),
        ("llama3_json", '{"city": "Oslo"}'),
        ("llama3_json", '<|python_tag|>brave_search.call(query="x")'),
        ("llama3_json", "<|python_tag|>print(7)\n"),
        ("llama3_json", '{"name": "no'),
        ("llama3_json", "{"),
        ("llama3_json", "a <| b {}"),
        ("pythonic", "[unknown(x=1)]"),
        ("pythonic", "[now(1)]"),
        ("pythonic", '[now("x")]'),
        ("pythonic", "[1] says"),
        ("pythonic", "[now]"),
        ("pythonic", "see [now()]"),
        ("pythonic", "[]"),
        ("pythonic", "[no"),
        ("pythonic", "[now("),
        ("pythonic", "[now(x"),
        ("pythonic", "now()"),
    ],
)
def test_text_that_is_not_a_call_is_unchanged(form: str, text: str) -> None:
    assert parse(text, form) == [Content(text)]


@pytest.mark.parametrize(
    ("form", "text", "parts"),
    [
        ("llama3_json", '{"name": "now", "para', [Content('{"name": "now", "para')]),
        ("llama3_json", '{"name": "now", "parameters": {"a": [1', cut_call(0, "now", '{"a": [1')),
        ("pythonic", '[now(a=1, b="x', cut_call(0, "now", '{"a": 1')),
        ("pythonic", '[now(a="x', cut_call(0, "now", "{")),
        # print(2) is not a literal
        ("pythonic", "[now(a=1, b=print(2))]", [*cut_call(0, "now", '{"a": 1'), Content(", b=print(2))]")]),
    ],
)
def test_incomplete_call_has_its_complete_arguments(form: str, text: str, parts: list[Part]) -> None:
    assert parse(text, form) == parts


def test_each_argument_is_sent_when_complete() -> None:
    assert stream(parser("pythonic"), ["[now(", "a=", "1", ",", " b='x'", ")", "]"]) == [
        [],
        begun(0, "now", "{"),
        [],
        [ToolCallArguments(0, '"a": 1')],
        [],
        [ToolCallArguments(0, ', "b": "x"}'), ToolCallEnd(0, is_complete=True)],
        [],
        [],
    ]
