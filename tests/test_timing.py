"""The figures of one answer, on a clock that stands where the test puts it."""

import pytest

from genai_server.timing import Stopwatch


class HandClock:
    """Seconds that go on only when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_of_several_tokens_has_all_figures() -> None:
    clock = HandClock()
    watch = Stopwatch(clock, input_tokens=7)
    clock.now += 0.5
    watch.count(1)
    clock.now += 1.0
    watch.count(4)
    clock.now += 0.5
    timings = watch.timings(decode_seconds=0.8)
    assert (timings.ttft, timings.total_latency) == (0.5, 2.0)
    assert (timings.input_tokens, timings.output_tokens) == (7, 5)
    assert timings.tokens_per_second == 12 / 2.0
    assert timings.tpot == pytest.approx(0.2)
    assert timings.output_tokens_per_second == pytest.approx(5.0)


def test_input_tokens_may_be_known_later_than_the_start() -> None:
    clock = HandClock()
    watch = Stopwatch(clock)
    clock.now += 2.0
    watch.input_tokens = 10
    timings = watch.timings(0.0)
    assert (timings.input_tokens, timings.tokens_per_second) == (10, 5.0)


def test_an_answer_without_tokens_has_no_first_token_and_no_time_per_token() -> None:
    clock = HandClock()
    watch = Stopwatch(clock, input_tokens=3)
    clock.now += 1.0
    timings = watch.timings(0.0)
    assert (timings.ttft, timings.tpot, timings.output_tokens_per_second) == (None, None, None)
    assert (timings.output_tokens, timings.total_latency) == (0, 1.0)


def test_one_token_has_no_time_per_token_because_the_first_is_not_counted() -> None:
    clock = HandClock()
    watch = Stopwatch(clock)
    clock.now += 0.25
    watch.count(1)
    timings = watch.timings(0.0)
    assert (timings.ttft, timings.tpot, timings.output_tokens_per_second) == (0.25, None, None)


def test_two_tokens_are_one_step_apart() -> None:
    watch = Stopwatch(HandClock())
    watch.count(2)
    timings = watch.timings(decode_seconds=0.5)
    assert (timings.tpot, timings.output_tokens_per_second) == (0.5, 2.0)


def test_no_rate_is_given_where_no_time_has_passed() -> None:
    watch = Stopwatch(HandClock(), input_tokens=3)
    watch.count(2)
    timings = watch.timings(decode_seconds=0.0)
    assert (timings.tokens_per_second, timings.output_tokens_per_second) == (None, None)
    assert (timings.ttft, timings.tpot) == (0.0, 0.0)


def test_after_the_stop_no_time_is_counted() -> None:
    now = 1.0
    watch = Stopwatch(lambda: now)
    now = 3.0
    watch.stop()
    now = 9.0
    assert watch.timings(0.0).total_latency == 2.0
