"""Tool calls of Kimi K2. The texts are those of its chat template and guide."""

import pytest

from genai_server.answer_parts import Content, ToolCallArguments, ToolCallCut, ToolCallStart
from genai_server.text.grammars import grammar
from genai_server.text.tool_formats.registry import TOOL_FORMATS
from genai_server.text.tool_formats.tool_format import Tool
from tests.text.guided import fits, validate
from tests.text.parsing import assert_cuts_change_nothing, parse, parse_all

ARGUMENTS = '{"city": "Oslo <|tool_call_end|> ü"}'
CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
FIRST, SECOND = CALL.format("functions.get_weather:3", ARGUMENTS), CALL.format("functions.now:4", "{}")
TEXT = f"<|tool_calls_section_begin|>{FIRST}{SECOND}<|tool_calls_section_end|>"
TOLD = [
    ToolCallStart(0, "functions.get_weather:3", "get_weather"),
    ToolCallArguments(0, ARGUMENTS),
    ToolCallStart(1, "functions.now:4", "now"),
    ToolCallArguments(1, "{}"),
]


def test_calls_have_the_ids_that_the_model_wrote() -> None:
    assert parse(f"I look.{TEXT} So.", "kimi") == [Content("I look."), *TOLD, Content(" So.")]
    assert parse(TEXT.replace("<|tool_call", "\n <|tool_call"), "kimi")[:1] == TOLD[:1]


def test_duplicate_or_unnumbered_id_is_replaced() -> None:
    twice = f"<|tool_calls_section_begin|>{SECOND}{SECOND}<|tool_calls_section_end|>"
    starts = [part for part in parse(twice, "kimi") if isinstance(part, ToolCallStart)]
    assert [start.id for start in starts] == ["functions.now:4", "0"]
    for id in ("now", "now:1", "functions.now"):
        parts = parse(f"<|tool_calls_section_begin|>{CALL.format(id, '{}')}", "kimi")
        assert parts == [ToolCallStart(0, "0", "now"), ToolCallArguments(0, "{}")]


@pytest.mark.parametrize(
    "text",
    [
        f"<|tool_calls_section_begin|>{CALL.format('functions.unknown:0', '{}')}<|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument",
        "<|tool_calls_section_begin|><|tool_calls_section_end|>",
        SECOND,
        "<|tool_calls_section_begin|><|tool_call_begin|>",
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(f"A {text}", "kimi") == [Content(f"A {text}")]


def test_a_call_in_which_the_answer_ends_is_cut() -> None:
    text = f"<|tool_calls_section_begin|>{FIRST}"
    written = text[: text.index("Oslo")]
    assert parse_all(written, "kimi")[-1] == ToolCallCut(0, written)


def test_markers_at_the_end_may_be_missing() -> None:
    assert parse(TEXT.removesuffix("<|tool_call_end|><|tool_calls_section_end|>"), "kimi") == TOLD


def test_cuts_change_nothing() -> None:
    assert_cuts_change_nothing(f"a {TEXT} b", "kimi")
    assert_cuts_change_nothing(f"<|tool_calls_section_begin|>{SECOND}", "kimi", pairs=True)


def test_calls_are_bound_as_the_template_writes_them() -> None:
    tools = [Tool("get_weather", {"properties": {"city": {"type": "string"}}, "required": ["city"]}), Tool("now")]
    for build in (grammar.tool_calls, grammar.text_and_calls):
        built = build(TOOL_FORMATS["kimi"], tools, parallel=True, opaque_tokens={})
        validate(built, param="tools")
        assert fits(built, TEXT)
        assert not fits(built, TEXT.replace("city", "town"))
        assert not fits(built, TEXT.replace("functions.now", "functions.later"))
