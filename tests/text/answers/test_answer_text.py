"""Tokens turned into parts and scored tokens, with stop strings and a limit of calls."""

import math

import pytest

from genai_server.answer_parts import (
    Content,
    Part,
    ScoredToken,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    WholeAnswer,
)
from genai_server.messages.generation_request import TokenLogprob
from genai_server.text.answers.answer_text import AnswerText, PlainParser
from genai_server.text.tokenizer import ByteTokenizer


class CallOnDigit(PlainParser):
    """Parses a digit as a call without arguments, "!" as one that is not complete, and everything else as content."""

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for c in text:
            is_complete = c.isdigit()
            call: list[Part] = [
                ToolCallStart(0, c, "f"),
                ToolCallArguments(0, "{"),
                ToolCallEnd(0, is_complete=is_complete),
            ]
            parts += call if is_complete or c == "!" else [Content(c)]
        return parts

    def finish(self) -> list[Part]:
        return [ToolCallArguments(9, "rest")]


def _answer(
    stop: list[str], parser: PlainParser | None = None, max_calls: int | None = None, offset: int = 0
) -> AnswerText:
    tokenizer = ByteTokenizer()
    return AnswerText(
        tokenizer.decoder(),
        stop,
        parser or PlainParser(),
        tokenizer.token_bytes,
        offset=offset,
        max_calls=max_calls,
    )


def _read(answer: AnswerText, text: str) -> WholeAnswer:
    whole = WholeAnswer()
    steps = (answer.feed(byte, TokenLogprob(byte, -1.0, [(byte, -1.0)])) for byte in text.encode())
    for parts, tokens in steps:
        for part in parts:
            whole.add(part)
        whole.tokens += tokens
        if answer.is_stopped:
            break
    parts, tokens = answer.finish()
    for part in parts:
        whole.add(part)
    whole.tokens += tokens
    return whole


@pytest.mark.parametrize(
    ("stop", "content", "stopped"),
    [
        ([], "añb🦜c", False),
        (["b"], "añ", True),
        (["🦜"], "añb", True),
        (["x"], "añb🦜c", False),
        (["cx"], "añb🦜c", False),
    ],
)
def test_the_scored_tokens_are_those_of_what_is_shown(stop: list[str], content: str, stopped: bool) -> None:
    answer = _answer(stop)
    whole = _read(answer, "añb🦜c")
    assert (whole.content, answer.is_stopped) == (content, stopped)
    assert b"".join(token.data for token in whole.tokens).decode() == content


def test_offsets_count_characters_from_where_the_answer_begins() -> None:
    whole = _read(_answer([], offset=10), "aé!")
    assert [token.offset for token in whole.tokens] == [10, 11, 11, 12]
    assert whole.tokens[0] == ScoredToken(b"a", -1.0, (ScoredToken(b"a", -1.0),), 10)


def test_an_answer_ends_before_a_call_too_many() -> None:
    answer = _answer([], CallOnDigit(), max_calls=1)
    whole = _read(answer, "x0y1z")
    assert ([call.id for call in whole.tool_calls], whole.content, answer.is_stopped) == (["0"], "xy", True)


def test_a_call_that_is_not_complete_is_not_one_too_many() -> None:
    answer = _answer([], CallOnDigit(), max_calls=1)
    whole = _read(answer, "x!0y1z")
    assert ([call.id for call in whole.tool_calls], whole.content, answer.is_stopped) == (["!", "0"], "xy", True)


def test_all_calls_are_returned_without_a_limit() -> None:
    answer = _answer([], CallOnDigit())
    parts = [part for byte in b"0123456789" for part in answer.feed(byte)[0]]
    assert sum(isinstance(part, ToolCallStart) for part in parts) == 10
    assert not answer.is_stopped
    assert answer.finish()[0] == [ToolCallArguments(9, "rest")]


def test_a_token_that_cannot_come_has_openais_lowest_score() -> None:
    scored = _answer([]).scored(TokenLogprob(97, -math.inf, [(98, -math.inf)]), 0)
    assert (scored.logprob, scored.top[0].logprob) == (-9999.0, -9999.0)
