"""Figures read from a recorded stream."""

import json

import pytest

from genai_server.tools.bench.measurement import (
    Answer,
    AnswerError,
    Spread,
    answer_figures,
    decode_rate,
    gaps_within,
    latencies,
    output_rate,
    per_token,
    percentile,
    read_answer,
    spread,
    text_times,
)


def event(text: str = "", reason: str | None = None, name: str = "content") -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {name: text}, "finish_reason": reason}]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}\n\ndata: [DONE]\n\n'


def test_an_answers_parts_have_the_times_of_their_arrival() -> None:
    pieces = [(1.0, event()), (2.0, event("a")), (3.0, event("b")), (4.0, event(reason="stop")), (5.0, USAGE)]
    answer = read_answer(0.5, pieces)
    assert answer == Answer(sent=0.5, chunks=(2.0, 3.0), ended=4.0, prompt_tokens=7, output_tokens=5)
    assert answer.ttft == 1.5
    assert answer.gaps == [1.0]


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (Answer(0.0, (2.0, 3.0, 4.0), 4.0, 7, 5), 0.5),
        (Answer(0.0, (), 4.0, 7, 5), None),
        (Answer(0.0, (2.0,), 2.0, 7, 1), None),
    ],
)
def test_the_time_per_token_leaves_out_the_first_token(answer: Answer, seconds: float | None) -> None:
    assert answer.tpot == seconds


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


def test_chunks_are_counted_as_tokens_without_usage_unless_the_answer_is_cut() -> None:
    assert read_answer(0.0, [(1.0, event("a")), (2.0, event("b", "stop"))]).output_tokens == 2
    for reason, output_tokens in (("length", 8), ("stop", 2)):
        pieces = [(1.0, event("a b c d")), (2.0, event("e f g h", reason))]
        answer = read_answer(0.0, pieces, prompt_tokens=7, max_tokens=8)
        assert (answer.prompt_tokens, answer.output_tokens) == (7, output_tokens)
        assert read_answer(0.0, [*pieces, (3.0, USAGE)], prompt_tokens=9, max_tokens=8).output_tokens == 5


def test_cached_and_drafted_tokens_are_read_where_reported() -> None:
    details = b'{"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2}'
    cached = b'"prompt_tokens_details": {"cached_tokens": 8}'
    usage = b'data: {"usage": {"prompt_tokens": 9, %b, "completion_tokens_details": %b}}\n\n' % (cached, details)
    answer = read_answer(0.0, [(1.0, event("a", "stop") + usage)])
    assert (answer.cached_tokens, answer.drafted_tokens) == (8, 3)
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


def stream(sent: float, first: float, step: float, count: int, cached: int | None = None) -> Answer:
    """An answer whose tokens arrive at regular times."""
    chunks = tuple(first + step * number for number in range(count))
    return Answer(sent, chunks, chunks[-1], prompt_tokens=100, output_tokens=count, cached_tokens=cached)


def test_percentiles_lie_between_values_and_spreads_leave_out_unknown_ones() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([], 50) is None
    assert latencies("itl", [3.0], 50, 99) == {"itl_p50": 3.0, "itl_p99": 3.0}
    assert spread([3.0, None, 1.0, 2.0]) == Spread(median=2.0, min=1.0, max=3.0, rounds=3)
    assert spread([None]) is None


def test_output_rate_spans_the_first_request_to_the_last_end() -> None:
    assert output_rate([stream(0.0, 1.0, 0.1, 11), stream(1.0, 2.0, 0.2, 11)]) == pytest.approx(22 / 4.0)
    assert output_rate([]) is None


@pytest.mark.parametrize(
    ("answers", "streams", "rate"),
    [
        ([stream(0.0, 5.0, 0.1, 21)], 1, 10.0),
        ([stream(0.0, 5.0, 0.1, 21), stream(7.0, 12.0, 0.1, 21)], 1, 10.0),
        # From 3.0 on both decode; the first one ends at 5.0.
        ([stream(0.0, 1.0, 0.1, 41), stream(0.0, 3.0, 0.2, 41)], 2, 10.0 + 5.0),
        (2 * [stream(0.0, 1.0, 0.1, 21)] + 2 * [stream(10.0, 11.0, 0.2, 21)], 2, 80 / (2.0 + 4.0)),
        # Chunks of several tokens.
        ([Answer(0.0, (1.0, 2.0, 3.0), 3.0, 100, 41)], 1, 20.0),
        # Nothing, too short, too little together, never together.
        ([], 1, None),
        ([stream(0.0, 1.0, 0.1, 5)], 1, None),
        ([stream(0.0, 1.0, 0.1, 40), stream(0.0, 4.5, 0.1, 40)], 2, None),
        ([stream(0.0, 1.0, 0.1, 40), stream(0.0, 9.0, 0.1, 40)], 2, None),
    ],
)
def test_decode_rate_is_that_of_the_common_decoding(answers: list[Answer], streams: int, rate: float | None) -> None:
    assert decode_rate(answers, streams) == (None if rate is None else pytest.approx(rate))


def test_figures_are_in_seconds_and_tokens_per_second() -> None:
    figures = answer_figures([stream(0.0, 0.5, 0.1, 21)], 1)
    assert (figures["ttft_p50"], figures["cached_tokens"]) == (0.5, None)
    assert figures["tpot_p50"] == pytest.approx(0.1)
    assert figures["itl_p99"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("cached", "num_streams", "rate"), [(20, 1, 160.0), (None, 1, None), (0, 2, None)], ids=["cached", "unknown", "two"]
)
def test_cached_tokens_and_several_streams_do_not_count_in_the_prefill_rate(
    cached: int | None, num_streams: int, rate: float | None
) -> None:
    answers = [stream(0.0, 0.5, 0.1, 21, cached=cached)] * num_streams
    assert answer_figures(answers, num_streams)["prefill_tokens_per_second"] == rate


def test_gaps_that_a_span_cuts_belong_to_it() -> None:
    assert gaps_within([0.0, 1.0, 3.0, 6.0, 10.0], 2.0, 5.0) == [2.0, 3.0]
    assert gaps_within([0.0, 1.0, 3.0, 6.0, 10.0], 1.0, 3.0) == [2.0]


def test_cost_per_token_is_unknown_without_a_start_or_tokens() -> None:
    answers = [stream(0.0, 0.5, 0.1, 21), stream(0.0, 0.5, 0.1, 19)]
    assert per_token(answers, 2.0, 4.0) == 0.05
    assert per_token(answers, None, 4.0) is None
    assert per_token([], 2.0, 4.0) is None
