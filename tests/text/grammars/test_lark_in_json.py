"""Lark grammars for texts within JSON strings, followed by llguidance."""

import json

import pytest
from llguidance import LLMatcher

from genai_server.errors import InvalidField
from genai_server.text.grammars import grammar
from genai_server.text.grammars.lark import in_json
from tests.text.guided import byte_tokenizer, validate

SCHEMA = {"type": "object", "required": ["input"], "additionalProperties": False}
PATCH = """
start: begin hunk+ end
begin: "*** Begin \\"Patch\\"" LF
end: "*** End" LF?
hunk: ("+" | "-") /(.*)/ LF   // a line
%import common.LF
"""


def _allows(source: str, text: str) -> bool:
    schema = {**SCHEMA, "properties": {"input": {"type": "string", "x-lark": source}}}
    built = grammar.arguments(schema, param="tools")
    validate(built, param="tools")
    matcher = LLMatcher(byte_tokenizer(), built)
    answer = json.dumps({"input": text}, ensure_ascii=False).encode()
    return matcher.try_consume_tokens(list(answer)) == len(answer) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("source", "fits", "does_not"),
    [
        ('start: "a\\"b" | "c\\\\d"', ['a"b', "c\\d"], ["ab", "cd", ""]),
        (r"start: /[a-z\n]+/", ["ab\nc"], ['a"', "A", "a\t"]),
        (r"start: /[^x]+/", ['a"b\\c\nd', "é"], ["x", ""]),
        (r"start: /.+/", ['say "x" \\ y\t', "ü"], ["a\nb"]),
        (r"start: /.+/s", ["a\nb"], [""]),
        (r"start: /(?s:.)(.)/", ["\na"], ["a\n"]),
        (r"start: /\d+\s\w/", ["12\tx", "1 x"], ["12x"]),
        (r"start: /\S+/", ['"\\x'], ["a b"]),
        (r"start: /\"x\/\\/", ['"x/\\'], ["x/"]),
        (r"start: /\x22\u{41}/", ['"A'], ["A"]),
        ('start: a "," a\na: /[0-9]+/\n%ignore /[ ]+/', ["1,2", "1 , 2"], ["1,"]),
        (
            'start: LINE+ OTHER?\nLINE: "-" /[^\\n]*/ "\\n"\nOTHER: /[a-c]+/ DIGIT\n%import common.DIGIT',
            ['-"\n-\n', "-\nab1"],
            ["-"],
        ),
        ("start: a [b]\na: /x/\nb: /y/{2}", ["x", "xyy"], ["xy"]),
        (
            'start: WORD "." | "a\\tb" WORD\n%ignore SPACE\nSPACE: /[\\n ]+/\n%import common.WORD',
            ["ab\n.", "a\tb c"],
            ["a"],
        ),
        ('start: "Hi"i', ["hI"], ["h"]),
        ('start: "\\u007f\\n"', ["\x7f\n"], ["\n"]),
        ('start: "a\x7fb"', ["a\x7fb"], ["ab"]),
        ('start: WS "a" ESCAPED_STRING\n%import common.WS\n%import common.ESCAPED_STRING', ['\n a"x\\"y"'], ["a"]),
        (PATCH, ['*** Begin "Patch"\n+say "x"\\\n-\t\n*** End\n'], ["*** Begin"]),
    ],
)
def test_a_text_fits_within_json_as_it_does_alone(source: str, fits: list[str], does_not: list[str]) -> None:
    assert [text for text in fits if not _allows(source, text)] == []
    assert [text for text in does_not if _allows(source, text)] == []


@pytest.mark.parametrize(
    "source",
    [
        "start: <think>",
        "start: ~/x/",
        "start: A & B",
        "start[lazy]: /x/",
        "start: @other",
        "/x/",
        "start: /(x/",
        "start: /x)/",
        "start: A\n%import common.NONSENSE -> A",
        'start: %json {"type": "object"}',
        "start: /a/x",
        r"start: /\bx/",
        'start: "\\q"',
    ],
)
def test_unsupported_lark_construct_is_named(source: str) -> None:
    with pytest.raises(InvalidField) as refused:
        in_json(source, param="tools")
    assert refused.value.param == "tools"
