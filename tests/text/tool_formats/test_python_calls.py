"""Tool calls as Python between the markers of LFM2 and OLMo 3, and what their models write around them."""

import pytest

from genai_server.answer_parts import Content, Reasoning, ToolCallEnd
from genai_server.text.answers.reasoning import THINK
from tests.text.parsing import assert_cuts_change_nothing, call, parse

LFM2 = '<|tool_call_start|>[get_weather(city="Oslo", days=[3]), now()]<|tool_call_end|>'
OLMO3 = '<function_calls>get_weather(city="Oslo", days=[3])\nnow()</function_calls>'
CALLS = [*call(0, "get_weather", '{"city": "Oslo", "days": [3]}'), *call(1, "now", "{}")]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("lfm2", LFM2),
        ("lfm2", LFM2.removesuffix("<|tool_call_end|>")),
        ("lfm2", LFM2.replace('"', "'")),
        ("lfm2", "<|tool_call_start|>\n[get_weather(city='Oslo', days=[3]),\n now()]\n<|tool_call_end|>\n"),
        ("olmo3", OLMO3),
        ("olmo3", OLMO3.removesuffix("</function_calls>")),
        ("olmo3", "<function_calls>\nget_weather(city='Oslo', days=[3])\n\nnow()\n</function_calls>\n"),
    ],
)
def test_calls_between_markers_are_parsed(form: str, text: str) -> None:
    assert parse(text, form) == CALLS


@pytest.mark.parametrize(("form", "text"), [("lfm2", LFM2), ("olmo3", OLMO3)])
def test_text_around_marked_calls_is_content_and_an_incomplete_call_is_cut(form: str, text: str) -> None:
    assert parse(f"I look. {text}\nSo.", form) == [Content("I look."), *CALLS, Content("\nSo.")]
    assert parse(text[: text.index("[3]")], form)[-1] == ToolCallEnd(0, is_complete=False)


@pytest.mark.parametrize(("form", "text"), [("lfm2", LFM2), ("olmo3", OLMO3)])
def test_marked_calls_are_the_same_wherever_the_text_is_cut(form: str, text: str) -> None:
    assert_cuts_change_nothing(f"<think>\nHm.</think>\n\nHi {text} So.", form, reasoning=THINK, pairs=True)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("lfm2", "<|tool_call_start|>[other()]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>now()<|tool_call_end|>"),
        ("olmo3", "<function_calls>other()</function_calls>"),
        ("olmo3", "<function_calls></function_calls>"),
        ("nemotron", '<TOOLCALL>[{"name": "other", "arguments": {}}]</TOOLCALL>'),
    ],
)
def test_call_of_an_unknown_function_is_content(form: str, text: str) -> None:
    assert parse(text, form) == [Content(text)]


def test_nemotrons_calls_follow_reasoning_that_the_prompt_begins() -> None:
    written = '[{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now"}]'
    text = f"Hm.\n</think>\n\n<TOOLCALL>{written}</TOOLCALL>"
    parts = parse(text, "nemotron", reasoning=THINK, inside=True)
    assert parts == [Reasoning("Hm."), *call(0, "get_weather", '{"city": "Oslo"}'), *call(1, "now", "{}")]
    assert_cuts_change_nothing(text, "nemotron", reasoning=THINK, inside=True)
