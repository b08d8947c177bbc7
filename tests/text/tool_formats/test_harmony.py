"""The messages of gpt-oss. The texts are those of OpenAI's "Harmony response format", unless a test says otherwise."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from genai_server.answer_parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart
from genai_server.text.answers.reasoning import HARMONY, ReasoningState
from genai_server.text.grammars import grammar
from genai_server.text.tokenizer import ModelTokenizer
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.harmony import MARKERS
from genai_server.text.tool_formats.tool_format import Call, Tool
from tests.running_server import DEMO
from tests.text import parsing
from tests.text.guided import Vocabulary, assert_answers, fits, tokenizer_with, validate
from tests.text.parsing import NAMES, assert_cuts_change_nothing, call, cut_call, merged, parser, stream

THOUGHT = "Need to use function get_weather."
ANALYSIS = f"<|channel|>analysis<|message|>{THOUGHT}<|end|>"
NEXT = "<|start|>assistant"
ARGUMENTS = '{"location":"San Francisco"}'
HEAD = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
CALL = f"{HEAD}{ARGUMENTS}<|call|>"
PLAN = "**Action plan**:\n1. Generate an HTML file\n---\nWill start executing the plan step by step"
ANNOUNCED = f"<|channel|>commentary<|message|>{PLAN}<|end|>"
FINAL = "<|channel|>final<|message|>2 + 2 = 4.<|return|>"


def parse(text: str, names: Any = NAMES, *, inside: bool = False) -> list[Part]:
    return parsing.parse(text, "harmony" if names else None, names, reasoning=HARMONY, inside=inside)


@pytest.mark.parametrize("names", [(), NAMES])
def test_channels_are_reasoning_and_content(names: Any) -> None:
    assert parse(f"{ANALYSIS}{NEXT}{FINAL}", names) == [Reasoning(THOUGHT), Content("2 + 2 = 4.")]


@pytest.mark.parametrize(
    "written",
    [
        CALL,
        CALL.replace(" <|constrain|>", "<|constrain|>"),
        CALL.replace("<|constrain|>", ""),
        CALL.replace(" <|constrain|>json", ""),
        CALL.replace("<|call|>", "<|end|>"),
        CALL.removesuffix("<|call|>"),
        CALL.replace("commentary", "analysis"),
        # the chat template's form
        f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
    ],
)
@pytest.mark.parametrize("before", ["", f"{ANALYSIS}{NEXT}"])
def test_call_is_parsed_from_every_form_of_its_header(written: str, before: str) -> None:
    expected = call(0, "get_weather", ARGUMENTS)
    assert parse(before + written) == ([Reasoning(THOUGHT), *expected] if before else expected)


def test_a_call_may_be_announced_to_the_user() -> None:
    parts = parse(f"{ANALYSIS}{NEXT}{ANNOUNCED}{NEXT}{CALL}")
    assert parts == [Reasoning(THOUGHT), Content(PLAN), *call(0, "get_weather", ARGUMENTS)]


def test_several_calls_and_messages_of_a_kind_follow_each_other() -> None:
    second = CALL.replace("get_weather", "now").replace(ARGUMENTS, "{}")
    parts = parse(f"{ANALYSIS}{NEXT}{ANALYSIS}{NEXT}{CALL}{NEXT}{second}{NEXT}{ANNOUNCED}{NEXT}{FINAL}")
    assert parts == [
        Reasoning(f"{THOUGHT}\n\n{THOUGHT}"),
        *call(0, "get_weather", ARGUMENTS),
        *call(1, "now", "{}"),
        Content(f"{PLAN}\n\n2 + 2 = 4."),
    ]


def test_an_end_that_is_missing_is_where_the_next_message_begins() -> None:
    parts = parse(f"<|channel|>analysis<|message|>a{NEXT}<|channel|>final<|message|>b")
    assert parts == [Reasoning("a"), Content("b")]
    assert parse("<|channel|>analysis<|message|>a<|channel|>final<|message|>b") == parts


@pytest.mark.parametrize("recipient", ["functions.unknown", "python", "browser.search"])
def test_a_message_for_another_recipient_stays_as_it_was_written(recipient: str) -> None:
    head = f"<|channel|>commentary to={recipient} <|constrain|>json<|message|>"
    assert parse(f'{head}{{"a": "<b>"}}<|call|>') == [Content(f'{head}{{"a": "<b>"}}')]
    assert parse(f"<|channel|>analysis to={recipient} code<|message|>1<|end|>") == [Reasoning("1")]


def test_call_that_continues_wrongly_or_ends_early_is_cut() -> None:
    head = "<|channel|>commentary to=functions.now<|message|>"
    assert parse(f'{head}{{"a": 1"}}<|end|>{NEXT}{FINAL}') == [
        *cut_call(0, "now", '{"a": 1'),
        Content('"}\n\n2 + 2 = 4.'),
    ]
    assert parse(f'{head}{{"a": [1') == cut_call(0, "now", '{"a": [1')


@pytest.mark.parametrize(
    "text", ["Plain <b>text</b>", "to be", " a", "<|message", "<|start|>x\ny", "<|start|>assistantHi"]
)
def test_text_without_a_header_is_for_the_user(text: str) -> None:
    assert parse(text) == [Content(text)]


@pytest.mark.parametrize("header", [f"{NEXT}<|channel|>final<|message|>", f"{NEXT}{CALL.partition('<|message|>')[0]}"])
@pytest.mark.parametrize("names", [(), NAMES])
def test_incomplete_header_at_the_end_is_not_returned(header: str, names: Any) -> None:
    ends = [header[: found.end()] for found in re.finditer(r"<\|\w+\|>|\w+|[ =]", header)]
    assert len(ends) > 4
    for end in ends:
        assert parse(ANALYSIS + end, names) == [Reasoning(THOUGHT)], end


@pytest.mark.parametrize("arguments", ["", "now()"])
def test_a_call_without_the_beginning_of_arguments_is_text(arguments: str) -> None:
    text = f"{HEAD.replace('get_weather', 'now')}{arguments}"
    assert parse(text) == [Content(text)]


def test_an_answer_may_begin_within_reasoning() -> None:
    assert HARMONY.state_after("<|start|>assistant<|channel|>analysis<|message|>") is ReasoningState.INSIDE
    assert HARMONY.state_after("Hi<|end|><|start|>assistant") is ReasoningState.BEFORE
    assert HARMONY.state_after("Hi<|end|>") is ReasoningState.BEFORE
    assert parse(f"so<|end|>{NEXT}{FINAL}", inside=True) == [Reasoning("so"), Content("2 + 2 = 4.")]


def test_reasoning_content_and_arguments_are_streamed() -> None:
    streamed = stream(parser("harmony", reasoning=HARMONY), [ANALYSIS[:40], ANALYSIS[40:], NEXT, CALL[:90], CALL[90:]])
    assert streamed[:2] == [[Reasoning(THOUGHT[:10])], [Reasoning(THOUGHT[10:])]]
    assert streamed[3] == [ToolCallStart(0, "0", "get_weather"), ToolCallArguments(0, ARGUMENTS[: 90 - len(CALL) + 36])]


def test_cuts_change_nothing() -> None:
    text = f"{ANALYSIS}{NEXT}{ANNOUNCED}{NEXT}{CALL}{NEXT}{FINAL}"
    assert_cuts_change_nothing(text, "harmony", reasoning=HARMONY)
    short = (
        "<|channel|>analysis<|message|>a <|end|><|start|>assistant to=functions.now<|channel|>commentary<|message|>{}"
    )
    assert_cuts_change_nothing(short, "harmony", reasoning=HARMONY, pairs=True)


# Grammars


def _built(*, forced: bool = False, opaque: dict[str, int] | None = None, inside: bool = False) -> str:
    tools = [Tool("get_weather", {"properties": {"location": {"enum": ["Oslo"]}}, "required": ["location"]})]
    state, tokens = ReasoningState.INSIDE if inside else ReasoningState.BEFORE, opaque or {}
    form = TOOL_FORMATS["harmony"]
    if forced:
        calls = grammar.tool_calls(form, tools, parallel=True, opaque_tokens=tokens)
        whole = grammar.after_reasoning(calls, HARMONY, state, tokens)
    else:
        whole = grammar.text_and_calls(form, tools, parallel=True, opaque_tokens=tokens, reasoning=HARMONY, state=state)
    validate(whole, param="tools")
    return whole


@pytest.mark.parametrize("forced", [False, True])
def test_a_call_is_bound_after_any_reasoning(forced: bool) -> None:
    built = _built(forced=forced)
    for before in ("", f"{ANALYSIS}{NEXT}", f"{ANALYSIS}{NEXT}{ANALYSIS}{NEXT}"):
        right, wrong = (f'{HEAD}{{"location": "{city}"}}' for city in ("Oslo", "Rome"))
        assert_answers(built, [before + right], [before + wrong, before])
        for text in (f"{before}{FINAL.removesuffix('<|return|>')}", f"{before}{ANNOUNCED}{NEXT}{right}"):
            assert fits(built, text) is not forced
    assert_answers(built, [], [HEAD.replace("get_weather", "now") + "{}", "Hello"])


def test_an_answer_that_continues_a_message_goes_on_with_it() -> None:
    form, tools = TOOL_FORMATS["harmony"], [Tool("now")]
    built = grammar.text_and_calls(
        form, tools, parallel=True, opaque_tokens={}, reasoning=HARMONY, state=ReasoningState.CLOSED
    )
    validate(built, param="tools")
    called, wrong = (f"is 4.<|end|>{NEXT}{form.write_calls([Call(name, {})])}" for name in ("now", "later"))
    assert_answers(built, ["is 4.", called], [wrong])
    calls = grammar.tool_calls(form, tools, parallel=True, opaque_tokens={})
    assert grammar.after_reasoning(calls, HARMONY, ReasoningState.CLOSED, {}) == calls


def test_the_rest_of_a_thought_may_come_first() -> None:
    assert fits(_built(inside=True), f"so<|end|>{NEXT}{ANALYSIS}{NEXT}{FINAL.removesuffix('<|return|>')}")


def test_a_format_binds_the_final_message() -> None:
    built = grammar.after_text(HARMONY.answer_opening, grammar.json_object(), {})
    whole = grammar.after_reasoning(built, HARMONY, ReasoningState.BEFORE, {})
    validate(whole, param="response_format")
    final = "<|channel|>final<|message|>"
    assert_answers(whole, [f'{ANALYSIS}{NEXT}{final}{{"a": 1}}'], [f"{ANALYSIS}{NEXT}{final}Hi", '{"a": 1}'])
    calls = grammar.tool_calls(TOOL_FORMATS["harmony"], [Tool("now")], parallel=False, opaque_tokens={})
    one_of_both = grammar.either(calls, built)
    validate(one_of_both, param="tools")
    assert_answers(one_of_both, [f'{final}{{"a": 1}}', HEAD.replace("get_weather", "now") + "{}"], [])


def test_markers_that_are_tokens_are_parsed_and_constrained(tmp_path: Path) -> None:
    tokenizer, content = tokenizer_with(DEMO / "tokenizer.json", dict.fromkeys(MARKERS, True))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    model = ModelTokenizer(tmp_path)
    vocabulary = Vocabulary(tokenizer, model.encode, grammar.find_opaque_tokens(content))
    text = f'{ANALYSIS}{NEXT}{ANNOUNCED}{NEXT}{HEAD}{{"location": "Oslo"}}'
    tokens = model.encode(text)
    assert tokens.count(vocabulary.opaque["<|channel|>"]) == 3
    shown = model.decoder(HARMONY.shown_tokens)
    parts = merged(stream(parser("harmony", reasoning=HARMONY), [shown.decode([token]) for token in tokens]))
    assert parts == [Reasoning(THOUGHT), Content(PLAN), *call(0, "get_weather", '{"location": "Oslo"}')]

    for written, is_allowed in (
        (text, True),
        (text.replace("Oslo", "Rome"), False),
        (f'{text}<|call|>{NEXT}{HEAD}{{"location": "Oslo"}}<|call|>', True),
        (f"{ANALYSIS}{NEXT}<|channel|>final<|message|>Hi <b>", True),
        (f"{ANALYSIS}{NEXT}Hi", False),
    ):
        assert vocabulary.allows(_built(opaque=vocabulary.opaque), written) is is_allowed, written
