"""Tool calls in JSON of Hermes and Qwen, Granite 3, Phi-4-mini and Mistral's models."""

import pytest

from genai_server.answer_parts import Content, Part, ToolCallArguments, ToolCallEnd
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from tests.text.parsing import begun, call, cut_call, parse, parser, stream

ARGUMENTS = '{"city": "]\\"ü😀", "o": [{}]}'
NOW = '{"name": "now", "arguments": {}}'
WEATHER = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
BOTH = call(0, "now", "{}") + call(1, "get_weather", ARGUMENTS)
MISTRAL_ARGUMENTS = '{"city": "Oslo \\"[ARGS] ü😀", "o": [{}]}'
MISTRAL_WEATHER = f'{{"name": "get_weather", "arguments": {MISTRAL_ARGUMENTS}}}'
HERMES_ARGUMENTS = '{"city": "Oslo \\"\\u00e9\\n\\\\ é 😀", "days": [1, -2.5e3, {"a": {}}], "b": null}'


def tagged(json: str) -> str:
    return f"<tool_call>\n{json}\n</tool_call>"


@pytest.mark.parametrize(
    ("form", "text", "parts"),
    [
        ("granite", f"I look. <|tool_call|>[{NOW}, {WEATHER}]\n", [Content("I look."), *BOTH]),
        ("granite", f"I look. <|tool_call|> [{NOW}, {WEATHER}]\n", [Content("I look."), *BOTH]),
        ("granite", f"I look. <tool_call>[{NOW}, {WEATHER}]\n", [Content("I look."), *BOTH]),
        ("phi4mini", f"<|tool_call|>[{NOW}, {WEATHER}]<|/tool_call|>", BOTH),
        ("phi4mini", f"<|tool_call|>[\n {NOW},\n {WEATHER}\n]", BOTH),
        ("phi4mini", f"<|tool_call|>{NOW}<|/tool_call|>\n<|tool_call|>{WEATHER}<|/tool_call|>\n", BOTH),
        ("phi4mini", f"functools[{NOW}, {WEATHER}]", BOTH),
        ("phi4mini", f"I go.\n<|tool_call|>[{NOW}, {WEATHER}]<|/tool_call|>", [Content("I go."), *BOTH]),
        ("phi4mini", '<|tool_call|>[{"name": "now"}]<|/tool_call|>', call(0, "now", "{}")),
        ("mistral", f"[TOOL_CALLS][{MISTRAL_WEATHER}]", call(0, "get_weather", MISTRAL_ARGUMENTS)),
        (
            "mistral",
            f'[TOOL_CALLS] [ {MISTRAL_WEATHER[:-1]}, "id": "abcdefghi"}} ]',
            call(0, "get_weather", MISTRAL_ARGUMENTS),
        ),
        ("mistral", f"[TOOL_CALLS]{MISTRAL_WEATHER}", call(0, "get_weather", MISTRAL_ARGUMENTS)),
        ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{MISTRAL_ARGUMENTS}", call(0, "get_weather", MISTRAL_ARGUMENTS)),
        (
            "mistral",
            f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{MISTRAL_ARGUMENTS}",
            call(0, "get_weather", MISTRAL_ARGUMENTS),
        ),
        ("mistral", f"[TOOL_CALLS]get_weather{MISTRAL_ARGUMENTS}", call(0, "get_weather", MISTRAL_ARGUMENTS)),
        ("mistral", f'[TOOL_CALLS][{{"name": "now"}}, {WEATHER}]', BOTH),
        ("mistral", f"[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}", BOTH),
        ("mistral", "I look.[TOOL_CALLS]now[ARGS]{}", [Content("I look."), *call(0, "now", "{}")]),
        (
            "hermes",
            tagged(f'{{"name": "get_weather", "arguments": {HERMES_ARGUMENTS}}}'),
            call(0, "get_weather", HERMES_ARGUMENTS),
        ),
        # Newlines around calls belong to the format.
        ("hermes", f"Let me see.\n\n{tagged(NOW)}\n{tagged(WEATHER)}\n", [Content("Let me see."), *BOTH]),
        # After a call, text keeps its space.
        ("hermes", f"One{tagged(NOW)}\n\nTwo\n", [Content("One"), *call(0, "now", "{}"), Content("\n\nTwo\n")]),
        ("hermes", tagged('{"name": "now"}'), call(0, "now", "{}")),
        ("hermes", tagged('{"name":"now","arguments":{}}'), call(0, "now", "{}")),
        ("hermes", tagged('{ "arguments": {} , "name": "now" }'), call(0, "now", "{}")),
        ("hermes", tagged('{"type": "function", "id": "x", "name": "now", "parameters": null}'), call(0, "now", "{}")),
        ("hermes", tagged('{"name": "n\\u006fw", "arguments": "{}"}'), call(0, "now", "{}")),
        ("hermes", tagged('{"arguments": {"city": 1}, "name": "now"}'), call(0, "now", '{"city": 1}')),
        ("hermes", tagged('{"name": "now", "arguments": "{\\"a\\": \\"b\\"}"}'), call(0, "now", '{"a": "b"}')),
        ("hermes", f"<tool_call> {tagged(NOW)}", [Content("<tool_call> "), *call(0, "now", "{}")]),
        *(("hermes", f"<tool_call>\n{NOW}{end}", call(0, "now", "{}")) for end in ("", "\n", "\n</tool_")),
        ("hermes", f"<tool_call>\n{NOW}</tool_call>", call(0, "now", "{}")),
    ],
)
def test_calls_are_parsed(form: str, text: str, parts: list[Part]) -> None:
    assert parse(text, form) == parts


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("granite", '<|tool_call|>[{"name": "unknown", "arguments": {}}]'),
        ("granite", "<|tool_call|>[]"),
        ("granite", "<|tool_call|>"),
        ("granite", f"[{NOW}]"),
        ("granite", "functools["),
        ("granite", '<|tool_call|>[{"name": "now"'),
        ("phi4mini", '<|tool_call|>[{"name": "unknown", "arguments": {}}]<|/tool_call|>'),
        ("phi4mini", "<|tool_call|>[]<|/tool_call|>"),
        ("phi4mini", "functools is a module of functions"),
        ("phi4mini", "functools.reduce(f, [1])"),
        ("phi4mini", NOW),
        ("phi4mini", "f"),
        ("phi4mini", "<|tool"),
        ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
        ("mistral", '[TOOL_CALLS][{"name": "unknown"}]'),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", "[TOOL_CALLS]now"),
        ("mistral", "[TOOL_CALLS"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "a [1] [TOOL_X]"),
        ("mistral", "now[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]now[AR"),
        ("mistral", "[TOOL_CALLS]now[ARGS]"),
        *(
            ("hermes", f"A\n{tagged(json)}\n")
            for json in (
                '{"name": "unknown", "arguments": {}}',
                '{"arguments": {}}',
                '{"name": 1, "arguments": {}}',
                '{"function": "now"}',
                "now()",
                '{"name": "now',
                "[]",
            )
        ),
        ("hermes", "A\n<tool_call>\n"),
        ("hermes", "A\n<tool_calls>\n\n"),
        ("hermes", "A\na < b <tool> \n <\n"),
        ("hermes", f"A\n{NOW}\n"),
        ("hermes", 'A\n<tool_call><tool_call>{"name": "unknown"}\n'),
        ("hermes", 'Hm\n<tool_call>\n{"name": "no'),
        ("hermes", '<tool_call>\n{"name": "now", "argu'),
    ],
)
def test_text_that_is_not_a_call_is_unchanged(form: str, text: str) -> None:
    assert parse(text, form) == [Content(text)]


@pytest.mark.parametrize(
    ("form", "text", "parts", "rest"),
    [
        ("phi4mini", f'functools[{NOW}, {{"name": "unknown"}}]', call(0, "now", "{}"), ', {"name": "unknown"}]'),
        (
            "hermes",
            tagged('{"name": "now", "arguments": {"a": foo}}'),
            cut_call(0, "now", '{"a": '),
            "foo}}\n</tool_call>",
        ),
        (
            "hermes",
            tagged('{"name": "now", "arguments": {"a": 1}, "x": 2}'),
            cut_call(0, "now", '{"a": 1'),
            '}, "x": 2}\n</tool_call>',
        ),
        (
            "hermes",
            tagged('{"name": "now", "arguments": {"a": 1}} {}'),
            call(0, "now", '{"a": 1}'),
            " {}\n</tool_call>",
        ),
        ("hermes", tagged('{"name": "now", "arguments": [1]}'), [], tagged('{"name": "now", "arguments": [1]}')),
    ],
)
def test_broken_call_continues_as_content(form: str, text: str, parts: list[Part], rest: str) -> None:
    assert parse(text, form) == [*parts, Content(rest)]


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("phi4mini", 'functools[{"name": "now", "arguments": {"a": 1', '{"a": 1'),
        ("mistral", '[TOOL_CALLS]now[ARGS]{"a": [1', '{"a": [1'),
        ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}', '{"a": 1'),
        *(
            ("hermes", f'<tool_call>\n{{"name": "now", "arguments": {cut}', cut.removesuffix("}"))
            for cut in ('{"a": "b', '{"a": 12', '{"a": tru', '{"a": "\\u00', "{", '{"a": 1}', "{}")
        ),
    ],
)
def test_cut_call_keeps_its_streamed_parts(form: str, text: str, arguments: str) -> None:
    cut = cut_call(0, "now", arguments)
    assert parse(text, form) == cut
    assert parse(f"Hm\n{text}", form) == [Content("Hm"), *cut]


def test_ids_of_mistral_are_nine_letters_and_digits() -> None:
    id = TOOL_FORMATS["mistral"].new_id()
    assert len(id) == 9
    assert id.isalnum()


def test_call_is_streamed_as_it_arrives() -> None:
    pieces = {
        "Hi ": [Content("Hi")],
        "\n<tool": [],
        "_call>\n": [],
        '{"name": "now"': [],
        ', "arguments": {"a': begun(0, "now", '{"a'),
        '": "b': [ToolCallArguments(0, '": "b')],
        'c"}': [ToolCallArguments(0, 'c"')],
        "}\n</tool_call>": [ToolCallArguments(0, "}"), ToolCallEnd(0, is_complete=True)],
        "\n": [],
    }
    assert stream(parser(), pieces) == [*pieces.values(), []]


def test_content_is_held_only_while_it_can_begin_a_call() -> None:
    streamed = stream(parser(), ["a", " <", "tool", "x", " ", "y"])
    assert streamed == [[Content("a")], [], [], [Content(" <toolx")], [], [Content(" y")], []]
