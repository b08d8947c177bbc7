"""Tool calls of DeepSeek's models and Kimi K2. The texts are those of their chat templates, model cards and guides."""

import pytest

from genai_server.answer_parts import Content, Part, ToolCallArguments, ToolCallEnd, ToolCallStart
from tests.text.parsing import call, cut_call, parse

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
DEEPSEEK_CALLS = call(0, "get_weather", ARGUMENTS) + call(1, "now", "{}")
HEAD = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>"

KIMI_ARGUMENTS = '{"city": "Oslo <|tool_call_end|> ü"}'
KIMI_CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
FIRST = KIMI_CALL.format("functions.get_weather:3", KIMI_ARGUMENTS)
SECOND = KIMI_CALL.format("functions.now:4", "{}")
KIMI = f"<|tool_calls_section_begin|>{FIRST}{SECOND}<|tool_calls_section_end|>"
# They have the ids that the model wrote.
KIMI_CALLS: list[Part] = [
    ToolCallStart(0, "functions.get_weather:3", "get_weather"),
    ToolCallArguments(0, KIMI_ARGUMENTS),
    ToolCallEnd(0, is_complete=True),
    ToolCallStart(1, "functions.now:4", "now"),
    ToolCallArguments(1, "{}"),
    ToolCallEnd(1, is_complete=True),
]


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        *((form, text, DEEPSEEK_CALLS) for form in ("deepseek_v3", "deepseek_v31") for text in (V3, V31)),
        ("kimi", KIMI, KIMI_CALLS),
    ],
)
def test_calls_are_read_without_the_text_around_them(form: str, text: str, calls: list[Part]) -> None:
    assert parse(f"I look.\n{text}\nSo.", form) == [Content("I look."), *calls, Content("\nSo.")]


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        *(
            ("deepseek_v3", text.removesuffix(end), DEEPSEEK_CALLS)
            for text in (V3, V31)
            for end in ("<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>")
        ),
        ("kimi", KIMI.removesuffix("<|tool_call_end|><|tool_calls_section_end|>"), KIMI_CALLS),
    ],
)
def test_markers_at_the_end_may_be_missing(form: str, text: str, calls: list[Part]) -> None:
    assert parse(text, form) == calls


def test_kimis_markers_may_have_whitespace_between_and_wrong_ids() -> None:
    assert parse(KIMI.replace("<|tool_call", "\n <|tool_call"), "kimi")[:1] == KIMI_CALLS[:1]
    twice = f"<|tool_calls_section_begin|>{SECOND}{SECOND}<|tool_calls_section_end|>"
    starts = [part for part in parse(twice, "kimi") if isinstance(part, ToolCallStart)]
    assert [start.id for start in starts] == ["functions.now:4", "0"]
    for id in ("now", "now:1", "functions.now"):
        assert parse(f"<|tool_calls_section_begin|>{KIMI_CALL.format(id, '{}')}", "kimi") == call(0, "now", "{}")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *(
            ("deepseek_v3", text)
            for text in (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>unknown\n```json\n{}\n```<｜tool▁call▁end｜>",
                HEAD,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n",
                "<｜tool▁calls▁begin｜>",
                "now<｜tool▁sep｜>{}",
            )
        ),
        *(
            ("kimi", text)
            for text in (
                KIMI.replace("get_weather", "unknown"),
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument",
                "<|tool_calls_section_begin|><|tool_calls_section_end|>",
                SECOND,
                "<|tool_calls_section_begin|><|tool_call_begin|>",
            )
        ),
    ],
)
def test_text_that_is_not_a_call_is_unchanged(form: str, text: str) -> None:
    assert parse(f"A {text}", form) == [Content(f"A {text}")]


def test_call_that_ends_early_or_continues_wrongly_is_cut() -> None:
    start = cut_call(0, "now", '{"a": [1')
    assert parse(f'{HEAD}{{"a": [1', "deepseek_v31") == start
    parts = parse(f'{HEAD}{{"a": [1}}<｜tool▁call▁end｜>', "deepseek_v31")
    assert parts == [*start, Content("}<｜tool▁call▁end｜>")]
    written = KIMI[: KIMI.index("Oslo")]
    assert parse(written, "kimi")[-1] == ToolCallEnd(0, is_complete=False)
