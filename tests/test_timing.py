"""The figures of one answer, on a clock that the test sets."""

from dataclasses import asdict

import pytest

from genai_server.messages.generation_request import Phases
from genai_server.timing import Arrival, Breakdown, Stopwatch
from tests.hand_clock import HandClock


def test_an_answer_of_several_tokens_has_all_figures(clock: HandClock) -> None:
    watch = Stopwatch(Arrival(clock), input_tokens=7)
    clock.wait(0.5)
    watch.count(1)
    clock.wait(1.0)
    watch.count(4)
    clock.wait(0.5)
    timings = watch.timings(Phases(decode=0.8), num_produced=5)
    assert (timings.ttft, timings.total_latency) == (0.5, 2.0)
    assert (timings.input_tokens, timings.output_tokens) == (7, 5)
    assert timings.tokens_per_second == 12 / 2.0
    assert timings.tpot == pytest.approx(0.2)
    assert timings.output_tokens_per_second == pytest.approx(5.0)


def test_answer_of_fewer_than_two_tokens_has_no_time_per_token(clock: HandClock) -> None:
    watch = Stopwatch(Arrival(clock), input_tokens=3)
    clock.wait(1.0)
    timings = watch.timings(Phases(queue=0.25, prefill=0.5), 0)
    assert (timings.ttft, timings.tpot, timings.output_tokens_per_second) == (None, None, None)
    assert (timings.output_tokens, timings.total_latency) == (0, 1.0)
    assert timings.breakdown == Breakdown(receive=0, load=0, prepare=0.25, queue=0.25, prefill=0.5, decode=0, deliver=0)
    watch.count(1)
    timings = watch.timings(Phases(), 1)
    assert (timings.ttft, timings.tpot, timings.output_tokens_per_second) == (1.0, None, None)


def test_tokens_behind_a_stop_string_count_in_the_time_per_token_that_the_engine_tells(clock: HandClock) -> None:
    watch = Stopwatch(Arrival(clock))
    watch.count(2)
    timings = watch.timings(Phases(decode=0.5), num_produced=11)
    assert timings.output_tokens == 2
    assert timings.tpot == pytest.approx(0.05)
    timings = watch.timings(None, 2)
    assert (timings.breakdown, timings.tpot) == (None, None)


def test_no_rate_is_given_where_no_time_has_passed(clock: HandClock) -> None:
    watch = Stopwatch(Arrival(clock), input_tokens=3)
    watch.count(2)
    timings = watch.timings(Phases(), 2)
    assert (timings.tokens_per_second, timings.output_tokens_per_second) == (None, None)
    assert (timings.ttft, timings.tpot) == (0.0, 0.0)


def test_time_after_the_stop_is_not_counted(clock: HandClock) -> None:
    watch = Stopwatch(Arrival(clock))
    clock.wait(2.0)
    watch.stop()
    clock.wait(6.0)
    assert watch.timings(Phases(), 0).total_latency == 2.0


def test_times_count_from_the_first_byte(clock: HandClock) -> None:
    arrival = Arrival(clock, began=clock.now - 1.0)
    clock.wait(2.0)
    arrival.received()
    for _ in range(2):  # a prompt that is too long is shortened and tried again
        with arrival.loading():
            clock.wait(4.0)
    clock.wait(16.0)
    watch = Stopwatch(arrival)
    clock.wait(32.0)
    assert watch.since_submission == 32.0
    watch.count(1)
    clock.wait(64.0)
    watch.stop()
    timings = watch.timings(Phases(queue=7.0, prefill=24.0, decode=60.0), 2)
    assert (timings.ttft, timings.total_latency) == (59.0, 123.0)
    assert timings.breakdown == Breakdown(
        receive=3.0, load=8.0, prepare=17.0, queue=7.0, prefill=24.0, decode=60.0, deliver=4.0
    )


@pytest.mark.parametrize(
    "phases", [Phases(), Phases(1.0, 2.0, 3.0), Phases(9.0, 0.0, 0.0), Phases(0.0, 9.0, 0.0), Phases(0.0, 0.0, 9.0)]
)
@pytest.mark.parametrize("before", [0.0, 0.5, 2.5])
def test_the_parts_add_up_whatever_the_engine_says(clock: HandClock, phases: Phases, before: float) -> None:
    """For example if the first token is not read while the engine produces others."""
    arrival = Arrival(clock)
    clock.wait(before)
    arrival.received()
    watch = Stopwatch(arrival)
    clock.wait(1.0)
    watch.count(1)
    clock.wait(0.25)
    timings = watch.timings(phases, 1)
    parts = asdict(timings.breakdown).values() if timings.breakdown else []
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(timings.total_latency)
