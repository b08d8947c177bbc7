"""Tool calls of Llama in Python."""

import json

import pytest

from genai_server.answer_parts import Content, ToolCallArguments, ToolCallStart
from tests.text.parsing import call, parse, parser, stream


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
    "text",
    [
        "[now(), get_weather(x=1)]",
        "[now(),get_weather(x=1)]\n",
        "<|python_start|>[now(), get_weather(x=1)]<|python_end|>",
        "<|python_tag|>[ now() , get_weather(x=1) ]",
        "[now()]\n[get_weather(x=1)]",
    ],
)
def test_several_calls_are_parsed(text: str) -> None:
    assert parse(text, "pythonic") == call(0, "now", "{}") + call(1, "get_weather", '{"x": 1}')


def test_text_may_come_before_and_after_calls() -> None:
    assert parse("Well.\n[now()]\nSo.", "pythonic") == [Content("Well."), *call(0, "now", "{}"), Content("\nSo.")]


@pytest.mark.parametrize(
    "text",
    [
        "[unknown(x=1)]",
        "[now(1)]",
        '[now("x")]',
        "[1] says",
        "[now]",
        "see [now()]",
        "[]",
        "[no",
        "[now(",
        "[now(x",
        "now()",
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(text, "pythonic") == [Content(text)]


def test_argument_that_is_not_a_literal_ends_the_call() -> None:
    parts = parse("[now(a=1, b=print(2))]", "pythonic")
    assert parts == [ToolCallStart(0, "0", "now"), ToolCallArguments(0, '{"a": 1'), Content(", b=print(2))]")]


def test_a_call_that_is_cut_has_the_arguments_that_were_complete() -> None:
    assert parse('[now(a=1, b="x', "pythonic") == call(0, "now", '{"a": 1')
    assert parse('[now(a="x', "pythonic") == [ToolCallStart(0, "0", "now")]


def test_each_argument_is_sent_when_complete() -> None:
    assert stream(parser("pythonic"), ["[now(", "a=", "1", ",", " b='x'", ")", "]"]) == [
        [],
        [ToolCallStart(0, "0", "now")],
        [],
        [ToolCallArguments(0, '{"a": 1')],
        [],
        [ToolCallArguments(0, ', "b": "x"}')],
        [],
        [],
    ]
