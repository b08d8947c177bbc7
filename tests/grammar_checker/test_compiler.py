"""The compiler's errors, and its checks before an engine compiles."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from genai_server.grammar_checker.compiler import CHECK_STACK, ENGINE_STACK, complaint, in_short
from genai_server.text.grammars.lark import expression
from tests.running_server import run_python


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
def test_grammar_with_special_tokens_is_left_to_the_engine(source: str) -> None:
    assert complaint(_lark(source)) is None


def test_grammar_that_fails_only_later_is_left_to_the_engine() -> None:
    assert complaint(_lark('start: a\na: a a | "x" | "x" a "x" a')) is None


@pytest.mark.parametrize("source", ["", "start: nowhere", "start: /a(/", "start: (", "not a grammar"])
def test_invalid_grammar_is_refused_with_the_compilers_message(source: str) -> None:
    words = complaint(_lark(source))
    assert words
    assert len(words) <= 500


@pytest.mark.parametrize(
    ("words", "shortened"),
    [
        ("panic: oh\n\n<backtrace>\n 0: std::panicking\n</backtrace>", "panic: oh"),
        ("too many items <non-verbose/>", "too many items"),
        ("x" * 900, "x" * 500),
    ],
)
def test_compiler_message_is_sent_without_stack_and_shortened(words: str, shortened: str) -> None:
    assert in_short(words) == shortened


def test_stack_size_applies_only_within_the_context() -> None:
    # In an interpreter of its own, because threads of this one may set it, too.
    program = (
        "import threading\n"
        "from genai_server.grammar_checker.compiler import CHECK_STACK, stack\n"
        "with stack(CHECK_STACK):\n"
        "    print(threading.stack_size())\n"
        "print(threading.stack_size())\n"
    )
    assert run_python("-c", program).split() == [str(CHECK_STACK), "0"]
    assert ENGINE_STACK > CHECK_STACK


@given(st.text(st.sampled_from('\\/\n\r\tad\x00é\u2028"[(')))
def test_regular_expression_is_written_as_by_the_library(pattern: str) -> None:
    built = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    assert built == f"start: {expression(pattern)}"
