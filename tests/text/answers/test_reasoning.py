"""How models mark their reasoning."""

import pytest

from genai_server.answer_parts import Content, Part, Reasoning, ToolCallStart
from genai_server.text.answers.reasoning import (
    HARMONY,
    MISTRAL_THINK,
    THINK,
    ReasoningFormat,
    ReasoningState,
    detect_reasoning,
)
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from genai_server.text.tool_formats.tool_format import Call
from tests.text import parsing
from tests.text.parsing import answer_of, merged, parser, stream


def parse(text: str, form: ReasoningFormat | None = THINK, *, inside: bool = False) -> list[Part]:
    return parsing.parse(text, None, (), reasoning=form, inside=inside)


@pytest.mark.parametrize("form", [THINK, MISTRAL_THINK])
def test_reasoning_is_separated_from_the_answer_and_newlines(form: ReasoningFormat) -> None:
    text = f"{form.opening}\nTwo lines\n\nof <thought> [so]\n{form.closing}\n\nAn answer.\n"
    assert parse(text, form) == [Reasoning("Two lines\n\nof <thought> [so]"), Content("An answer.\n")]


@pytest.mark.parametrize(
    ("text", "inside", "parts"),
    [
        ("so\n</think>\nyes", True, [Reasoning("so"), Content("yes")]),
        # A marker that is repeated inside is dropped.
        ("<think>\nso</think>yes", True, [Reasoning("so"), Content("yes")]),
        ("<think>\n\n</think>\n\nyes", False, [Content("yes")]),
        ("<think>\nfirst </thi", False, [Reasoning("first </thi")]),
        ("first\n", True, [Reasoning("first\n")]),
    ],
)
def test_reasoning_may_be_begun_empty_or_cut(text: str, inside: bool, parts: list[Part]) -> None:
    assert parse(text, inside=inside) == parts


@pytest.mark.parametrize("text", ["<thinking> is a tag", "no", " \n<thin", "Write <think>so</think>", "  x"])
def test_an_answer_without_reasoning_is_content_unchanged(text: str) -> None:
    assert parse(text) == [Content(text)]


def test_markers_are_content_where_the_model_has_no_reasoning() -> None:
    assert parse("<think>so</think>yes", None) == [Content("<think>so</think>yes")]


@pytest.mark.parametrize(
    ("form", "written", "end"),
    [
        (THINK, "", "\n</think>\n\n"),
        (THINK, "\n</think>\n\n", "\n</think>\n\n"),
        (THINK, "</think>", "</think>"),
        (THINK, "\n\n</think>\n\n\n", "\n\n</think>\n\n"),
        # Without the marker, or with other text, it is no end of a thought.
        (THINK, "<|im_end|>", "\n</think>\n\n"),
        (THINK, "\n</think>\nSo: ", "\n</think>\n\n"),
        (MISTRAL_THINK, "[/THINK]", "[/THINK]"),
        (HARMONY, "<|end|>", "<|end|><|start|>assistant"),
    ],
)
def test_a_thought_is_closed_as_the_template_writes_it(form: ReasoningFormat, written: str, end: str) -> None:
    assert form.end(written) == end
    assert parse(f"{form.opening}So be it{end}{form.answer_opening}Yes", form)[-1] == Content("Yes")


def test_reasoning_is_streamed() -> None:
    pieces = ["<th", "ink>", "\n", "I ", "see", " </", "b>", "\n", "</think>", "\n", "\n", "Yes"]
    streamed = stream(parser(None, (), reasoning=THINK), pieces)
    assert streamed[3:7] == [[Reasoning("I ")], [Reasoning("see")], [Reasoning(" ")], [Reasoning("</b>")]]
    assert streamed[7:] == [[], [], [], [], [Content("Yes")], []]


def test_calls_within_reasoning_are_reasoning() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    parts = merged(stream(parser("hermes", reasoning=THINK), [f"<think>{call}</think>{call}"]))
    assert parts[:2] == [Reasoning(call), ToolCallStart(0, "0", "now")]


@pytest.mark.parametrize("form", sorted(TOOL_FORMATS.keys() - {"harmony"}))
def test_complete_calls_in_reasoning_that_is_never_closed_are_calls(form: str) -> None:
    written = TOOL_FORMATS[form].write_calls([Call("now", {})])
    made = parsing.parse(written, form)
    assert [called.name for called in answer_of(made).tool_calls] == ["now"]
    assert _in_thought(form, f"Hm.\n{written}") == [Reasoning("Hm."), *made]
    assert _in_thought(form, f"{written}\n") == made
    assert _in_thought(form, f"Hm.\n\n {written}\nI wait.\n") == [
        Reasoning("Hm.\n\n "),
        *made,
        Reasoning("\nI wait.\n"),
    ]
    # These were none.
    thought = f"Hm.\n{written}\nNo."
    assert _in_thought(form, f"{thought}\n</think>\n\nYes.") == [Reasoning(thought), Content("Yes.")]
    if TOOL_FORMATS[form].opening is not None and form != "qwen3_coder":  # whose second line can begin a call
        assert _in_thought(form, f"As in {written}") == [Reasoning(f"As in {written}")]
    begun = f"Hm.\n{written[: written.index('now') + 3]}"
    assert _in_thought(form, begun) == [Reasoning(begun)]


def _in_thought(form: str, text: str) -> list[Part]:
    """The parts of an answer that begins in reasoning."""
    return parsing.parse(text, form, reasoning=THINK, inside=True)


def test_a_call_whose_arguments_have_the_closing_marker_ends_the_reasoning() -> None:
    text = 'Hm.\n<tool_call>\n{"name": "now", "arguments": {"a": "</think>'
    assert _in_thought("hermes", text) == [Reasoning(text.removesuffix("</think>"))]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ content.split('</think>')[-1] }}", THINK),
        ("{{ '[THINK]' + block['thinking'] + '[/THINK]' }}", MISTRAL_THINK),
        ("<|start|>assistant<|channel|>analysis<|message|>", HARMONY),
        ("{{ message.content }}<|end|>", None),
    ],
)
def test_chat_template_determines_the_format(template: str, form: ReasoningFormat | None) -> None:
    assert detect_reasoning(template) is form


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ("<|im_start|>assistant\n<think>\n", ReasoningState.INSIDE),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ReasoningState.CLOSED),
        ("<｜Assistant｜></think>", ReasoningState.CLOSED),
        ("Write <think> and </think><|im_start|>assistant\n", ReasoningState.BEFORE),
    ],
)
def test_end_of_the_prompt_determines_where_the_answer_begins(prompt: str, state: ReasoningState) -> None:
    assert THINK.state_after(prompt) is state


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ("Sure, ", ReasoningState.CLOSED),
        ("<think>\nHm, ", ReasoningState.INSIDE),
        ("<think>\nHm\n</think>\n\nSure, ", ReasoningState.CLOSED),
    ],
)
def test_answer_that_continues_a_message_begins_where_that_ends(message: str, state: ReasoningState) -> None:
    assert THINK.state_within(message) is state
