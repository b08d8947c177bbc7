"""Tool calls of DeepSeek's models. The texts are those of their chat templates and model cards."""

import pytest

from genai_server.answer_parts import Content, ToolCallArguments, ToolCallCut, ToolCallStart
from genai_server.text.grammars import grammar
from genai_server.text.tool_formats.registry import TOOL_FORMATS
from genai_server.text.tool_formats.tool_format import Tool
from tests.text.guided import fits, validate
from tests.text.parsing import assert_cuts_change_nothing, call, parse, parse_all

ARGUMENTS = '{"city": "Oslo ``` <｜tool▁call▁end｜> ü"}'
V31 = (
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
FORMS = ["deepseek_v3", "deepseek_v31"]
TOLD = call(0, "get_weather", ARGUMENTS) + call(1, "now", "{}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", [V3, V31])
def test_both_formats_are_read(form: str, text: str) -> None:
    assert parse(f"I look.\n{text}\nSo.", form) == [Content("I look."), *TOLD, Content("\nSo.")]


@pytest.mark.parametrize("text", [V3, V31])
@pytest.mark.parametrize("end", ["<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"])
def test_markers_at_the_end_may_be_missing(text: str, end: str) -> None:
    assert parse(text.removesuffix(end), "deepseek_v3") == TOLD


@pytest.mark.parametrize(
    "text",
    [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>unknown\n```json\n{}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n",
        "<｜tool▁calls▁begin｜>",
        "now<｜tool▁sep｜>{}",
    ],
)
def test_text_that_is_not_a_call_is_unchanged(text: str) -> None:
    assert parse(f"A {text}", "deepseek_v3") == [Content(f"A {text}")]


def test_call_that_ends_early_or_continues_wrongly_is_cut() -> None:
    head = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>"
    start = [ToolCallStart(0, "0", "now"), ToolCallArguments(0, '{"a": [1')]
    assert parse_all(f'{head}{{"a": [1', "deepseek_v31") == [*start, ToolCallCut(0, f'{head}{{"a": [1')]
    parts = parse_all(f'{head}{{"a": [1}}<｜tool▁call▁end｜>', "deepseek_v31")
    assert parts == [*start, ToolCallCut(0, f'{head}{{"a": [1'), Content("}<｜tool▁call▁end｜>")]


@pytest.mark.parametrize(("form", "text"), [("deepseek_v3", V3), ("deepseek_v31", V31)])
def test_cuts_change_nothing(form: str, text: str) -> None:
    assert_cuts_change_nothing(f"a {text} b", form)
    assert_cuts_change_nothing(text.replace("get_weather", "now").replace(ARGUMENTS, "{}")[:90], form, pairs=True)


@pytest.mark.parametrize(("form", "text"), [("deepseek_v3", V3), ("deepseek_v31", V31)])
def test_calls_are_bound_as_the_template_writes_them(form: str, text: str) -> None:
    tools = [Tool("get_weather", {"properties": {"city": {"type": "string"}}, "required": ["city"]}), Tool("now")]
    for build in (grammar.tool_calls, grammar.text_and_calls):
        built = build(TOOL_FORMATS[form], tools, parallel=True, opaque_tokens={})
        validate(built, param="tools")
        assert fits(built, text)
        assert not fits(built, text.replace("city", "town"))
        assert not fits(built, text.replace("now", "later"))
