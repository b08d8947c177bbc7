"""What the compiler says, and what it does before an engine does it."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from genai_server.grammar_checker.compiler import CHECK_STACK, ENGINE_STACK, complaint, in_short, stack
from genai_server.text.grammars.lark import expression


def _lark(source: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": source}]})


@pytest.mark.parametrize(
    "source",
    [
        'start: "a"',
        "start: <[5]>",
        "start: <[151657]> /a+/",
        "start: <|im_end|> | <tool_call>",
        "start: <[4294967295]>",
    ],
)
def test_what_a_model_must_know_is_left_to_the_engine(source: str) -> None:
    assert complaint(_lark(source)) is None


def test_a_grammar_that_only_fails_on_its_way_is_left_to_the_engine() -> None:
    assert complaint(_lark('start: a\na: a a | "x" | "x" a "x" a')) is None


@pytest.mark.parametrize("source", ["", "start: nowhere", "start: /a(/", "start: (", "not a grammar"])
def test_a_wrong_grammar_has_the_compilers_words(source: str) -> None:
    words = complaint(_lark(source))
    assert words
    assert len(words) <= 500


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("panic: oh\n\n<backtrace>\n 0: std::panicking\n</backtrace>", "panic: oh"),
        ("too many items <non-verbose/>", "too many items"),
        ("x" * 900, "x" * 500),
    ],
)
def test_of_the_librarys_words_clients_are_told_neither_its_stack_nor_more_than_they_read(
    words: str, told: str
) -> None:
    assert in_short(words) == told


def test_threads_started_within_have_their_own_stack_and_later_ones_the_usual() -> None:
    before = threading.stack_size()
    with stack(CHECK_STACK):
        assert threading.stack_size() == CHECK_STACK
    assert threading.stack_size() == before
    assert ENGINE_STACK > CHECK_STACK


@given(st.text(st.sampled_from('\\/\n\r\tad\x00é\u2028"[(')))
def test_a_regular_expression_is_written_as_the_library_writes_it(pattern: str) -> None:
    built = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    assert built == f"start: {expression(pattern)}"
