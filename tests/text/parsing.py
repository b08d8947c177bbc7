"""Answers parsed for tests."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations, count
from typing import Any

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    WholeAnswer,
)
from genai_server.text.answers.answer_text import AnswerParser
from genai_server.text.answers.reasoning import ReasoningFormat
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS

NAMES = ("get_weather", "now")
# Markers and other parts of answers in all formats, and parts with whitespace. NAME stands for a function's name.
_PIECES = re.findall(
    r"\S+",
    """
    ( ) = ** [ ] { } ; : , . < > " ' \\ x é 1 true NAME get_weather 'x' "name" "NAME" "n\\u0061me"
    "arguments" "parameters" "id" "a" {"a":1} <tool_call> </tool_call> <|tool_call|> <|/tool_call|>
    functools [TOOL_CALLS] [ARGS] [CALL_ID] <|python_tag|> [NAME( NAME( NAME(a=1) <think> </think>
    <function=NAME> <function= <parameter=a> <parameter=city> </parameter> </function>
    <arg_key>a</arg_key> <arg_key>city</arg_key> <arg_value> </arg_value> <minimax:tool_call>
    </minimax:tool_call> </invoke> function <｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> <｜tool▁sep｜>
    NAME<｜tool▁sep｜> <｜tool▁call▁end｜> <｜tool▁calls▁end｜> <|tool_calls_section_begin|>
    <|tool_call_begin|> functions.NAME:0 <|tool_call_argument_begin|> <|tool_call_end|>
    <|tool_calls_section_end|> <|start|>assistant <|channel|>analysis <|message|> <|end|> Hi Rome Paris
    city="Rome") city="Paris") <|tool_call_start|> <|tool_call_end|> <function_calls> </function_calls> <TOOLCALL>
    </TOOLCALL>
    """,
)
_PIECES += [" ", "\n", "\r", ", ", "; ", "\nNAME", "\nNAME\n", "<tool_call>\n", "\n</tool_call>", "```json\n", "\n```"]
_PIECES += [
    '{"name": "NAME", "arguments": ',
    '{"name": "NAME"}',
    '[{"name": "NAME"}]',
    '{"name": "NAME", ',
    '"id": 1, ',
]
_PIECES += ['"arguments": ', '"parameters": ', '{"a": 1}', '{"city": "Rome"}', '{"city": "Paris"}']
_PIECES += ['{"parameters": {"city": 1}, "name": "NAME"}', "<|channel|>commentary to=functions.NAME"]
_PIECES += ['<invoke name="NAME">', '<parameter name="a">', '<parameter name="city">']
# Names of functions, or a mapping to the schemas of their arguments.
Functions = Collection[str] | Mapping[str, Mapping[str, Any] | None]


def pieces(name: str) -> list[str]:
    """Parts of answers, of which many make almost a call of this function."""
    return [piece.replace("NAME", name) for piece in _PIECES]


def parser(
    form: str | None = "hermes",
    names: Functions = NAMES,
    *,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
    only_complete_calls: bool = False,
) -> AnswerParser:
    """A parser that numbers call ids: "0", "1" and so on."""
    ids = map(str, count())
    return AnswerParser(
        TOOL_FORMATS[form] if form else None,
        names if isinstance(names, Mapping) else dict.fromkeys(names),
        reasoning=reasoning,
        starts_in_reasoning=inside,
        new_id=lambda: next(ids),
        only_complete_calls=only_complete_calls,
    )


def stream(parser: AnswerParser, pieces: Iterable[str]) -> list[list[Part]]:
    """The parser's output for each piece and for the end."""
    return [*(parser.feed(piece) for piece in pieces), parser.finish()]


def parse(text: str, form: str | None = "hermes", names: Functions = NAMES, **how: Any) -> list[Part]:
    """The parts of an answer, which are the same whether it arrives complete, in threes or letter by letter.

    `how` has other arguments of `parser`.
    """
    whole, threes, letters = (
        merged(stream(parser(form, names, **how), cut(text, size))) for size in (len(text) or 1, 3, 1)
    )
    assert whole == threes == letters
    return whole


def assert_cuts_change_nothing(
    text: str, form: str, names: Functions = NAMES, *, pairs: bool = False, **how: Any
) -> None:
    """Check that an answer has the same parts wherever it is cut: once, letter by letter and, with `pairs`, twice.

    `how` has other arguments of `parser`.
    """

    def read(pieces: Iterable[str]) -> list[Part]:
        return merged(stream(parser(form, names, **how), pieces))

    whole = read([text])
    assert read(text) == whole
    places = range(1, len(text))
    for cuts in [*((place,) for place in places), *(combinations(places, 2) if pairs else ())]:
        pieces = [text[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True)]
        assert read(pieces) == whole, pieces


def cut(text: str, size: int) -> Iterator[str]:
    """The text in pieces of this size."""
    return (text[begin : begin + size] for begin in range(0, len(text), size))


def merged(pieces: Iterable[list[Part]]) -> list[Part]:
    """All parts, with neighbours of one kind merged."""
    parts: list[Part] = []
    for part in (part for some in pieces for part in some):
        last = parts[-1] if parts else None
        if isinstance(part, Content) and isinstance(last, Content):
            parts[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            parts[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, ToolCallArguments) and isinstance(last, ToolCallArguments):
            assert part.index == last.index
            parts[-1] = ToolCallArguments(last.index, last.fragment + part.fragment)
        else:
            parts.append(part)
    return parts


def answer_of(parts: Iterable[Part]) -> WholeAnswer:
    """The answer that the parts make up."""
    answer = WholeAnswer()
    for part in parts:
        answer.add(part)
    return answer


def call(index: int, name: str, arguments: str) -> list[Part]:
    """The parts of a complete call."""
    return [*begun(index, name, arguments), ToolCallEnd(index, is_complete=True)]


def cut_call(index: int, name: str, arguments: str) -> list[Part]:
    """The parts of a call that is not complete."""
    return [*begun(index, name, arguments), ToolCallEnd(index, is_complete=False)]


def begun(index: int, name: str, arguments: str) -> list[Part]:
    """The parts of a call so far."""
    return [ToolCallStart(index, str(index), name), ToolCallArguments(index, arguments)]
