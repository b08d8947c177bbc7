"""Stop strings that span the pieces of a text."""

import json
import math
import time
from itertools import pairwise
from typing import SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from genai_server.text.answers.answer_text import AnswerText, PlainParser, StopStrings
from genai_server.text.answers.reasoning import HARMONY, THINK, ReasoningFormat
from genai_server.text.tokenizer import ByteTokenizer
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from tests.text.parsing import NAMES, answer_of, merged, parser, pieces, stream

# Few letters, so that strings often start and overlap.
TEXTS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def shown(strings: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """The shown text of an answer, and the stop string that ended it."""
    stop = StopStrings(strings)
    text = ""
    for piece in pieces:
        more, stopped = stop.feed(piece)
        text += more
        assert stopped == (stop.found is not None)
        if stopped:
            assert stop.feed("more") == ("", True)
            break
    return text + stop.finish(), stop.found


def expected(strings: list[str], text: str) -> tuple[str, str | None]:
    """The same by trying each position of the text in turn."""
    for end in range(len(text) + 1):
        complete = [string for string in strings if text[:end].endswith(string)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def _cut(text: str, data: st.DataObject) -> list[str]:
    """The text in pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(TEXTS, STOPS, st.data())
def test_text_ends_at_the_first_complete_stop_string(text: str, strings: list[str], data: st.DataObject) -> None:
    assert shown(strings, _cut(text, data)) == expected(strings, text)


@given(TEXTS, STOPS)
def test_only_possible_stop_strings_are_held_back(text: str, strings: list[str]) -> None:
    stop = StopStrings(strings)
    seen = "".join(stop.feed(character)[0] for character in text)
    if stop.found is None:
        held = text[len(seen) :]
        assert held == stop.finish()
        assert not held or any(string.startswith(held) for string in strings)


@pytest.mark.parametrize(
    ("strings", "pieces", "text", "found"),
    [
        (["</s>"], ["a</", "s", ">b"], "a", "</s>"),
        (["</s>"], ["a</", "sb"], "a</sb", None),
        (["abcd", "bc"], ["abcd"], "a", "bc"),
        (["bc", "abc"], ["xabc"], "x", "abc"),
        (["aab"], ["aaab"], "a", "aab"),
        (["\n\n"], ["one\n", "two\n", "\nthree"], "one\ntwo", "\n\n"),
        (["é👋"], ["é", "é", "👋"], "é", "é👋"),
        ([], ["all", " of it"], "all of it", None),
    ],
)
def test_text_shown_ends_before_a_stop(strings: list[str], pieces: list[str], text: str, found: str | None) -> None:
    assert shown(strings, pieces) == (text, found)


class Counted(str):
    """A text that counts how often a character of any such text is looked at."""

    __slots__ = ()
    steps = 0

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        Counted.steps += 1
        return super().__getitem__(place)


@pytest.fixture(autouse=True)
def steps_from_zero() -> None:
    Counted.steps = 0


def test_repeated_near_match_takes_linear_time() -> None:
    stop = StopStrings([Counted("a" * 1000 + "b")])
    assert stop.feed("a" * 10_000) == ("a" * 9000, False)
    assert Counted.steps < 50_000


def test_many_long_stop_strings_cost_no_more_than_their_matches() -> None:
    stop = StopStrings([Counted(f"{chr(0x4E00 + number)}{'x' * 1023}") for number in range(64)])
    text = "no character of them begins here: x" * 100
    assert stop.feed(text) == (text, False)
    assert Counted.steps == 64
    assert stop.feed("\u4e01xx.") == ("\u4e01xx.", False)
    assert Counted.steps < 80


class CallOnDigit(PlainParser):
    """Parses a digit as a call without arguments, "!" as one that is not complete, and everything else as content."""

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for c in text:
            if c.isdigit() or c == "!":
                end = ToolCallEnd(0, is_complete=c.isdigit())
                parts += [ToolCallStart(0, c, "f"), ToolCallArguments(0, "{"), end]
            else:
                parts.append(Content(c))
        return parts

    def finish(self) -> list[Part]:
        return [ToolCallArguments(9, "rest")]


def _answer(
    stop: list[str], parser: PlainParser | None = None, max_calls: int | None = None, offset: int = 0
) -> AnswerText:
    tokenizer = ByteTokenizer()
    return AnswerText(
        tokenizer.decoder(), stop, parser or PlainParser(), tokenizer.token_bytes, offset=offset, max_calls=max_calls
    )


def _read(answer: AnswerText, text: str) -> WholeAnswer:
    fed: list[tuple[list[Part], list[ScoredToken]]] = []
    for byte in text.encode():
        fed.append(answer.feed(byte, TokenLogprob(byte, -1.0, [(byte, -1.0)])))
        if answer.is_stopped:
            break
    fed.append(answer.finish())
    whole = answer_of(part for parts, _ in fed for part in parts)
    whole.tokens = [token for _, tokens in fed for token in tokens]
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


@pytest.mark.parametrize(
    ("text", "calls"), [("x0y1z", ["0"]), ("x!0y1z", ["!", "0"])], ids=["complete", "not complete"]
)
def test_an_answer_ends_before_a_complete_call_too_many(text: str, calls: list[str]) -> None:
    answer = _answer([], CallOnDigit(), max_calls=1)
    whole = _read(answer, text)
    assert ([call.id for call in whole.tool_calls], whole.content, answer.is_stopped) == (calls, "xy", True)


def test_all_calls_are_returned_without_a_limit() -> None:
    answer = _answer([], CallOnDigit())
    parts = [part for byte in b"0123456789" for part in answer.feed(byte)[0]]
    assert sum(isinstance(part, ToolCallStart) for part in parts) == 10
    assert not answer.is_stopped
    assert answer.finish()[0] == [ToolCallArguments(9, "rest")]


def test_a_token_that_cannot_come_has_openais_lowest_score() -> None:
    scored = _answer([]).scored(TokenLogprob(97, -math.inf, [(98, -math.inf)]), 0)
    assert (scored.logprob, scored.top[0].logprob) == (-9999.0, -9999.0)


# Many are almost calls.
ANSWERS = st.lists(st.sampled_from(pieces("now")), max_size=25).map("".join)
untimed = settings(deadline=None)
FORMATS = st.sampled_from(sorted(TOOL_FORMATS))


@untimed
@given(ANSWERS, st.data(), FORMATS, st.booleans(), st.sampled_from([THINK, HARMONY]))
def test_pieces_give_the_same_parts_as_the_whole(
    text: str, data: st.DataObject, form: str, inside: bool, reasoning: ReasoningFormat
) -> None:
    whole, parts = (
        merged(stream(parser(form, reasoning=reasoning, inside=inside), given)) for given in ([text], _cut(text, data))
    )
    assert whole == parts


@untimed
@given(ANSWERS, FORMATS)
def test_nothing_is_lost_without_tools(text: str, form: str) -> None:
    assert merged(stream(parser(form, ["unknown"]), [text])) == ([Content(text)] if text else [])


@untimed
@given(ANSWERS, FORMATS)
def test_only_complete_calls_have_arguments_that_are_an_object(text: str, form: str) -> None:
    answer, streamed = (
        answer_of(merged(stream(parser(form, only_complete_calls=only_complete), [text])))
        for only_complete in (True, False)
    )
    for called in [*answer.tool_calls, *streamed.tool_calls]:
        assert called.arguments.startswith("{")
        assert _is_object(called.arguments) is called.is_complete
    # Where only complete calls count, an answer without one is its text.
    assert all(called.is_complete for called in answer.tool_calls)
    assert answer.tool_calls or "".join(answer.content.split()) == "".join(text.split())
    # Calls before the first one that is not complete do not depend on what the reader can show.
    first = next((n for n, called in enumerate(streamed.tool_calls) if not called.is_complete), None)
    told, whole = ([(call.name, call.arguments) for call in one.tool_calls[:first]] for one in (streamed, answer))
    assert told == whole


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@untimed
@given(ANSWERS, FORMATS)
def test_calls_are_of_known_tools_and_in_order(text: str, form: str) -> None:
    parts = merged(stream(parser(form), [text]))
    starts = [part for part in parts if isinstance(part, ToolCallStart)]
    assert [(start.index, start.id) for start in starts] == [(n, str(n)) for n in range(len(starts))]
    assert {start.name for start in starts} <= set(NAMES)
    for before, part in pairwise(parts):
        if isinstance(part, ToolCallArguments):
            assert isinstance(before, ToolCallStart)
            assert before.index == part.index


def test_neighbours_of_a_kind_come_as_one() -> None:
    assert stream(parser(), ["a b <c> d\n\n<x y"]) == [[Content("a b <c> d\n\n<x y")], []]


@pytest.mark.parametrize("form", [None, "hermes"])
def test_all_is_content_without_tools(form: str | None) -> None:
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
    assert stream(parser(form, ()), [text]) == [[Content(text)], []]


@pytest.mark.parametrize(
    ("form", "beginning"),
    [
        ("hermes", '<tool_call>{"id": '),
        ("pythonic", "[now(a=\n"),
        ("qwen3_coder", "<tool_call><function=now><parameter=a>"),
        ("harmony", "<|channel|>"),
        # The others are read by the same parsers, with other markers.
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama3_json", '{"arguments":\n'),
                ("mistral", '[TOOL_CALLS][{"arguments": '),
                ("glm", "<tool_call>now<arg_key>a"),
                ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"),
                ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>"),
                ("olmo3", "<function_calls>now(a="),
            )
        ),
    ],
)
def test_parsing_time_is_linear_in_repeated_beginnings(form: str, beginning: str) -> None:
    """Each of them would be a call if only its end came."""
    for text, reasoning in ((beginning * 7_000, None), (f"{beginning}\n" * 7_000, THINK)):
        began = time.process_time()
        assert merged(stream(parser(form, reasoning=reasoning, inside=True), [text]))
        assert time.process_time() - began < 7  # of a processor, so that a busy machine changes little
