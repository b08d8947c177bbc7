"""Grammars in GBNF."""

import random

import pytest
from llguidance import LLMatcher

from genai_server.errors import InvalidField
from genai_server.text.grammars.grammar import MAX_GBNF, is_gbnf, lark_of_gbnf

ARITHMETIC = """
# From llama.cpp's guide.
root  ::= (expr "=" ws term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= num | "(" ws expr ")" ws
num   ::= [0-9]+ ws
ws    ::= [ \\t\\n]*
"""


def test_a_grammar_with_the_rule_root_is_gbnf_and_becomes_one_that_compiles() -> None:
    assert is_gbnf(ARITHMETIC)
    assert not is_gbnf('start: "root ::= x"')
    converted = lark_of_gbnf(ARITHMETIC, param="grammar")
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(converted)) == ""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('root ::= "a', "not a valid GBNF grammar"),
        ("root ::= nowhere", "'nowhere' not found"),
        ("root ::= [", "not a valid GBNF grammar"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested too deeply"),
        ("root ::= " + '"a" ' * MAX_GBNF, f"at most {MAX_GBNF} characters if it is GBNF; given {4 * MAX_GBNF + 9}"),
    ],
    ids=lambda value: value[:20],
)
def test_wrong_gbnf_is_refused_by_its_field(source: str, words: str) -> None:
    with pytest.raises(InvalidField, match="ebnf") as refused:
        lark_of_gbnf(source, param="ebnf")
    assert refused.value.param == "ebnf"
    assert words in refused.value.message


def test_changed_gbnf_is_converted_or_refused() -> None:
    chance = random.Random(1)
    pieces = [*'()[]{}|*"\\^\n', "::=", "{2,", "{99999999999}", "\\x", "\\ud800", "é", "root"]
    for _ in range(500):
        at = chance.randint(0, len(ARITHMETIC))
        changed = ARITHMETIC[:at] + chance.choice(pieces) + ARITHMETIC[at + chance.randint(0, 3) :]
        try:
            assert lark_of_gbnf(changed, param="grammar")
        except InvalidField as refused:
            assert refused.param == "grammar"
