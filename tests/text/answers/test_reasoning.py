"""How models mark their reasoning."""

import pytest

from genai_server.answer_parts import Content, Part, Reasoning, ToolCallStart
from genai_server.text.answers.reasoning import HARMONY, MISTRAL_THINK, THINK, ReasoningFormat, detect_reasoning
from tests.text.parsing import cut, merged, parser, stream


def parse(text: str, form: ReasoningFormat | None = THINK, *, inside: bool = False) -> list[Part]:
    whole, letters = (
        merged(stream(parser(None, (), reasoning=form, inside=inside), cut(text, size))) for size in (len(text), 1)
    )
    assert whole == letters
    return whole


@pytest.mark.parametrize("form", [THINK, MISTRAL_THINK])
def test_reasoning_is_separated_from_the_answer_and_newlines(form: ReasoningFormat) -> None:
    text = f"{form.opening}\nTwo lines\n\nof <thought> [so]\n{form.closing}\n\nAn answer.\n"
    assert parse(text, form) == [Reasoning("Two lines\n\nof <thought> [so]"), Content("An answer.\n")]


def test_an_answer_may_begin_inside() -> None:
    assert parse("so\n</think>\nyes", inside=True) == [Reasoning("so"), Content("yes")]


def test_a_marker_that_is_repeated_inside_is_dropped() -> None:
    assert parse("<think>\nso</think>yes", inside=True) == [Reasoning("so"), Content("yes")]


def test_empty_reasoning_is_none() -> None:
    assert parse("<think>\n\n</think>\n\nyes") == [Content("yes")]


def test_reasoning_that_is_cut_stays_reasoning() -> None:
    assert parse("<think>\nfirst </thi") == [Reasoning("first </thi")]
    assert parse("first\n", inside=True) == [Reasoning("first\n")]


@pytest.mark.parametrize("text", ["<thinking> is a tag", "no", " \n<thin", "Write <think>so</think>", "  x"])
def test_an_answer_without_reasoning_is_content_unchanged(text: str) -> None:
    assert parse(text) == [Content(text)]


def test_markers_are_content_where_the_model_has_no_reasoning() -> None:
    assert parse("<think>so</think>yes", None) == [Content("<think>so</think>yes")]


def test_reasoning_is_streamed() -> None:
    pieces = ["<th", "ink>", "\n", "I ", "see", " </", "b>", "\n", "</think>", "\n", "\n", "Yes"]
    streamed = stream(parser(None, (), reasoning=THINK), pieces)
    assert streamed[3:7] == [[Reasoning("I ")], [Reasoning("see")], [Reasoning(" ")], [Reasoning("</b>")]]
    assert streamed[7:] == [[], [], [], [], [Content("Yes")], []]


def test_calls_within_reasoning_are_reasoning() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    parts = merged(stream(parser("hermes", reasoning=THINK), [f"<think>{call}</think>{call}"]))
    assert parts[:2] == [Reasoning(call), ToolCallStart(0, "0", "now")]


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


def test_prompt_determines_whether_the_answer_starts_inside() -> None:
    assert THINK.begins_inside("<|im_start|>assistant\n<think>\n")
    assert not THINK.begins_inside("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not THINK.begins_inside("Write <think> and stop<|im_start|>assistant\n")
