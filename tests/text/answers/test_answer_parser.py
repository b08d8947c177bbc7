"""Properties of answers in every format."""

import json
import time
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genai_server.answer_parts import Content, Part, ToolCallArguments, ToolCallStart, WholeToolCall
from genai_server.text.answers.dialect import TOOL_FORMATS
from genai_server.text.answers.reasoning import HARMONY, THINK, ReasoningFormat
from tests.text.parsing import NAMES, answer_of, call, cut_call, merged, parse, parser, pieces, stream

# Many are almost calls.
ANSWERS = st.lists(st.sampled_from(pieces("now")), max_size=25).map("".join)
untimed = settings(deadline=None)
FORMATS = st.sampled_from(sorted(TOOL_FORMATS))


@st.composite
def cut_answers(draw: st.DrawFn) -> tuple[str, list[str]]:
    """An answer, complete and in pieces."""
    text = draw(ANSWERS)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    return text, [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@untimed
@given(cut_answers(), FORMATS, st.booleans(), st.sampled_from([THINK, HARMONY]))
def test_pieces_give_the_same_parts_as_the_whole(
    answer: tuple[str, list[str]], form: str, inside: bool, reasoning: ReasoningFormat
) -> None:
    text, pieces = answer
    whole = stream(parser(form, reasoning=reasoning, inside=inside), [text])
    assert merged(stream(parser(form, reasoning=reasoning, inside=inside), pieces)) == merged(whole)


@untimed
@given(ANSWERS, FORMATS)
def test_nothing_is_lost_without_tools(text: str, form: str) -> None:
    assert merged(stream(parser(form, ["unknown"]), [text])) == ([Content(text)] if text else [])


@untimed
@given(ANSWERS, FORMATS)
def test_answer_without_a_complete_call_is_its_text(text: str, form: str) -> None:
    whole = answer_of(merged(stream(parser(form, only_complete_calls=True), [text])))
    assert all(call.is_complete for call in whole.tool_calls)
    if not whole.tool_calls:
        assert "".join(whole.content.split()) == "".join(text.split())


@untimed
@given(ANSWERS, FORMATS)
def test_only_complete_calls_have_arguments_that_are_an_object(text: str, form: str) -> None:
    complete, _ = (
        answer_of(merged(stream(parser(form, only_complete_calls=only_complete), [text])))
        for only_complete in (True, False)
    )
    streamed = answer_of(merged(stream(parser(form), [text])))
    for called in [*complete.tool_calls, *streamed.tool_calls]:
        assert called.arguments.startswith("{")
        assert _is_object(called.arguments) is called.is_complete
    # Calls before the first one that is not complete do not depend on what the reader can show.
    first = next((n for n, called in enumerate(streamed.tool_calls) if not called.is_complete), None)
    assert [_told(called) for called in streamed.tool_calls[:first]] == [
        _told(called) for called in complete.tool_calls[:first]
    ]


def _told(called: WholeToolCall) -> tuple[str, str]:
    return called.name, called.arguments


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_call_that_continues_wrongly_is_cut_and_returned_as_text() -> None:
    text = 'Well: <tool_call>\n{"name": "now", "arguments": {"a": 10001"}}\n</tool_call>'
    assert parse(text) == [
        Content("Well:"),
        *cut_call(0, "now", '{"a": 10001'),
        Content('"}}\n</tool_call>'),
    ]


def test_a_call_in_which_the_answer_ends_is_cut() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call> <tool_call>{"name": "now", "arguments": {"a'
    assert parse(text) == [
        *call(0, "now", "{}"),
        *cut_call(1, "now", '{"a'),
    ]


@untimed
@given(ANSWERS, FORMATS)
def test_calls_are_of_known_tools_and_in_order(text: str, form: str) -> None:
    parts = merged(stream(parser(form), [text]))
    starts = [part for part in parts if isinstance(part, ToolCallStart)]
    assert [(start.index, start.id) for start in starts] == [(n, str(n)) for n in range(len(starts))]
    assert {start.name for start in starts} <= set(NAMES)
    for before, part in zip([None, *parts], parts, strict=False):
        if isinstance(part, ToolCallArguments):
            assert isinstance(before, ToolCallStart)
            assert before.index == part.index


@untimed
@given(st.sampled_from(NAMES), st.dictionaries(st.text(), st.text() | st.integers() | st.none()), ANSWERS)
def test_the_arguments_of_a_complete_call_are_one_object(name: str, arguments: dict[str, object], before: str) -> None:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    parts = merged(stream(parser("hermes"), [f"{before.replace('<', '')}<tool_call>{call}</tool_call>"]))
    fragments = [part.fragment for part in parts if isinstance(part, ToolCallArguments)]
    assert [json.loads(fragment) for fragment in fragments] == [arguments]


def test_neighbours_of_a_kind_come_as_one() -> None:
    parsed: list[list[Part]] = stream(parser(), ["a b <c> d\n\n<x y"])
    assert parsed == [[Content("a b <c> d\n\n<x y")], []]
    assert all(len(list(some)) == 1 for parts in parsed for _, some in groupby(parts, type))


@pytest.mark.parametrize("form", [None, "hermes"])
def test_all_is_content_without_tools(form: str | None) -> None:
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
    assert stream(parser(form, ()), [text]) == [[Content(text)], []]


@pytest.mark.parametrize(
    # Those outside the main tests are read by the same parsers, with other markers.
    "form",
    [
        form if form in ("hermes", "pythonic", "harmony", "qwen3_coder") else pytest.param(form, marks=pytest.mark.slow)
        for form in sorted(TOOL_FORMATS)
    ],
)
def test_parsing_time_is_linear_in_repeated_beginnings(form: str) -> None:
    """Each of them would be a call if only its end came."""
    beginnings = {
        "hermes": '<tool_call>{"id": ',
        "llama3_json": '{"arguments":\n',
        "pythonic": "[now(a=\n",
        "mistral": '[TOOL_CALLS][{"arguments": ',
        "phi4mini": 'functools[{"arguments": ',
        "granite": '<|tool_call|>[{"arguments": ',
        "qwen3_coder": "<tool_call><function=now><parameter=a>",
        "glm": "<tool_call>now<arg_key>a",
        "minimax": '<minimax:tool_call><invoke name="now"><parameter name="a">',
        "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>",
        "harmony": "<|channel|>",
        "lfm2": "<|tool_call_start|>[now(a=",
        "olmo3": "<function_calls>now(a=",
        "nemotron": '<TOOLCALL>[{"arguments": ',
    }
    for text, reasoning in ((beginnings[form] * 7_000, None), (f"{beginnings[form]}\n" * 7_000, THINK)):
        began = time.process_time()
        assert merged(stream(parser(form, reasoning=reasoning, inside=True), [text]))
        assert time.process_time() - began < 7  # of a processor, so that a busy machine changes little
