"""Figures read from a recorded stream."""

import json

import pytest

from genai_server.tools.bench.measured_answer import Answer, AnswerError, read_answer, text_times


def event(text: str = "", reason: str | None = None, name: str = "content") -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {name: text}, "finish_reason": reason}]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}\n\ndata: [DONE]\n\n'


def test_an_answers_parts_have_the_times_of_their_arrival() -> None:
    pieces = [(1.0, event()), (2.0, event("a")), (3.0, event("b")), (4.0, event(reason="stop")), (5.0, USAGE)]
    answer = read_answer(0.5, pieces)
    assert answer == Answer(sent=0.5, chunks=(2.0, 3.0), ended=4.0, prompt_tokens=7, output_tokens=5)
    assert answer.ttft == 1.5
    assert answer.gaps == [1.0]


def test_the_time_per_token_leaves_out_the_first_token() -> None:
    assert Answer(0.0, (2.0, 3.0, 4.0), 4.0, 7, 5).tpot == 0.5


@pytest.mark.parametrize("answer", [Answer(0.0, (), 4.0, 7, 5), Answer(0.0, (2.0,), 2.0, 7, 1)])
def test_tpot_needs_a_second_token(answer: Answer) -> None:
    assert answer.tpot is None


@pytest.mark.parametrize(
    ("pieces", "times"),
    [
        ([event("a")[:9], event("a")[9:], event(reason="stop")], (2.0,)),
        ([event("a") + event("b", "stop")], (1.0, 1.0)),
        ([b": ping\r\n\r\n" + event("a", "stop").replace(b"\n", b"\r\n")], (1.0,)),
        ([event("hm", "stop", "reasoning_content")], (1.0,)),
    ],
    ids=["event in two pieces", "two events in a piece", "carriage returns and a comment", "reasoning"],
)
def test_each_event_with_text_has_the_time_of_its_end(pieces: list[bytes], times: tuple[float, ...]) -> None:
    assert read_answer(0.0, enumerate(pieces, start=1)).chunks == times


def test_chunks_are_counted_as_tokens_without_usage() -> None:
    assert read_answer(0.0, [(1.0, event("a")), (2.0, event("b", "stop"))]).output_tokens == 2


@pytest.mark.parametrize(("reason", "output_tokens"), [("length", 8), ("stop", 2)])
def test_answer_that_is_cut_has_its_limits_tokens_without_usage(reason: str, output_tokens: int) -> None:
    pieces = [(1.0, event("a b c d")), (2.0, event("e f g h", reason))]
    answer = read_answer(0.0, pieces, prompt_tokens=7, max_tokens=8)
    assert (answer.prompt_tokens, answer.output_tokens) == (7, output_tokens)
    assert read_answer(0.0, [*pieces, (3.0, USAGE)], prompt_tokens=9, max_tokens=8).output_tokens == 5


def test_cached_tokens_are_read_where_reported() -> None:
    usage = b'data: {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}}\n\n'
    assert read_answer(0.0, [(1.0, event("a", "stop") + usage)]).cached_tokens == 8


def test_drafted_tokens_are_those_of_the_answer() -> None:
    details = b'{"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2}'
    usage = b'data: {"usage": {"prompt_tokens": 9, "completion_tokens_details": %b}}\n\n' % details
    assert read_answer(0.0, [(1.0, event("a", "stop") + usage)]).drafted_tokens == 3
    assert read_answer(0.0, [(1.0, event("a", "stop"))]).drafted_tokens is None


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b'data: {"error": {"code": "engine_died"}}\n\n', "engine_died"),
        (event("a"), "without a finish_reason"),
        (b"", "without a finish_reason"),
        (b"data: {\n\n", "not JSON"),
    ],
)
def test_a_stream_that_breaks_off_is_no_answer(stream: bytes, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        read_answer(0.0, [(1.0, stream)])


def test_times_of_a_truncated_stream_are_read() -> None:
    assert text_times([(1.0, event("a")), (2.0, event("b") + b"data: {")]) == [1.0, 2.0]
