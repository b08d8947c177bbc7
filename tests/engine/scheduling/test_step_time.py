"""The size of prompt chunks, derived from the duration of passes."""

import math

import pytest

from genai_server.engine.scheduling.step_time import PROMPT_SHARE, StepTimeModel


def measured(*passes: tuple[int, int, float]) -> StepTimeModel:
    """After passes of these numbers of decoding sequences, tokens, and seconds."""
    step_times = StepTimeModel()
    for one in passes:
        step_times.passed(*one)
    return step_times


def test_one_slow_chunk_changes_no_later_one() -> None:
    chunks = [(0, 10, 1.0)] * 3
    step_times = measured(*chunks, (0, 10, 20.0), (1, 1, 13.0))
    assert step_times.chunk(1000) == int(PROMPT_SHARE * 130)
    assert measured(*chunks, *[(0, 10, 2.0)] * 3, (1, 1, 13.0)).chunk(1000) == int(PROMPT_SHARE * 65)


@pytest.mark.parametrize("most", [2, 7, 50])
def test_chunk_never_exceeds_the_maximum(most: int) -> None:
    assert measured((0, 1000, 0.001), (1, 1, 100.0)).chunk(most) == most


def test_times_follow_what_was_measured_lately() -> None:
    step_times = measured((0, 10, 1.0))
    for _ in range(2):
        step_times.passed(1, 1, 0.2)
        step_times.begin_round()
    step_times.begin_round()  # a round without decoding teaches nothing
    assert step_times.seconds_to_read(30) == pytest.approx(3.0)
    assert step_times.seconds_to_decode(5) == pytest.approx(1.0)
    for _ in range(50):
        step_times.passed(1, 1, 0.4)
        step_times.begin_round()
    assert step_times.seconds_to_decode(5) == pytest.approx(2.0)


def test_expected_answer_length_is_the_recent_average() -> None:
    step_times = StepTimeModel()
    assert step_times.tokens_left(3) == math.inf
    step_times.answered(10)
    assert [step_times.tokens_left(produced) for produced in (3, 9, 50)] == [7.0, 1.0, 1.0]


def test_mixed_pass_attributes_decoding_time_to_decoding() -> None:
    assert measured((4, 4, 0.1), (4, 54, 0.2)).seconds_to_read(100) == pytest.approx(0.2)
    # Before any other, it is shared by its tokens.
    assert measured((10, 50, 1.0)).seconds_to_read(40) == pytest.approx(0.8)


def test_tokens_read_in_a_time_follow_the_measured_speed() -> None:
    assert measured().tokens_read_in(10.0) == 0.0
    assert measured((0, 10, 1.0)).tokens_read_in(2.0) == pytest.approx(20)


# passes that only decode


def test_time_of_a_pass_is_estimated_from_other_passes() -> None:
    times = StepTimeModel()
    assert times.curve(3) == [0.0] * 4
    times.passed(2, 2, 1.0)
    assert times.seconds(1) == times.seconds(2) == 1.0
    assert 1.0 < times.seconds(4) < 2.0
    times.passed(4, 4, 2.0)
    assert times.curve(8) == pytest.approx([1.0, 1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])


def test_more_tokens_never_take_less_time() -> None:
    times = measured((1, 1, 2.0), (3, 3, 1.0), (5, 5, 3.0))
    assert [times.seconds(number) for number in (1, 2, 3, 5)] == pytest.approx([1.5, 1.5, 1.5, 3.0], abs=0.05)
    many = measured((1, 1, 2.0), *[(3, 3, 1.0)] * 3)
    assert many.seconds(1) == many.seconds(3) == pytest.approx(1.25, abs=0.05)


def test_one_slow_pass_counts_only_until_the_next() -> None:
    times = measured((1, 1, 1.0), (4, 4, 20.0))
    assert times.seconds(4) == pytest.approx(20.0)
    times.passed(4, 4, 2.0)
    assert times.seconds(4) == 2.0
    for seconds in (2.1, 30.0, 1.9):
        times.passed(4, 4, seconds)
        assert times.seconds(4) in (2.0, 2.1)


def test_passes_that_become_slower_are_known_after_three() -> None:
    times = measured(*[(4, 4, 1.0)] * 5)
    found = []
    for _ in range(3):
        times.passed(4, 4, 2.0)
        found.append(times.seconds(4))
    assert found == [1.0, 1.0, 2.0]


def test_measurements_that_are_not_repeated_are_dropped() -> None:
    times = measured((1, 1, 1.0), (4, 4, 20.0))
    for _ in range(1000):
        times.passed(1, 1, 1.0)
    assert times.seconds(4) == pytest.approx(1.6)


def test_passes_of_large_batches_are_measured() -> None:
    times = measured((200, 200, 1.0))
    assert (times.seconds(1), times.seconds(200)) == (1.0, 1.0)
    times.passed(0, 100, 0.5)
    assert times.chunk(1000, decoding=times.seconds(200)) == int(PROMPT_SHARE * 200)


# passes at the start


def test_passes_of_the_start_tell_what_others_take() -> None:
    times = StepTimeModel({1: 1.0, 4: 2.0, 7: 3.0, 8: 3.0, 64: 3.5})
    assert times.curve(64)[-1] == 3.5
    times.passed(4, 4, 4.0)  # as with a longer past, or another program
    assert [times.seconds(number) for number in (1, 4, 7, 36)] == pytest.approx([2.0, 4.0, 5.5, 6.5])


def test_disturbed_pass_of_the_start_counts_no_longer_than_the_curve_suggests() -> None:
    times = StepTimeModel({1: 1.0, 4: 20.0})
    assert times.seconds(4) == 20.0
    times.passed(1, 1, 1.0)
    assert times.seconds(4) == pytest.approx(1.6)
    times.passed(4, 4, 2.0)
    assert times.seconds(4) == 2.0


def test_measured_passes_count_more_than_those_of_the_start() -> None:
    times = StepTimeModel({1: 1.0, 8: 2.0, 16: 3.0})
    times.passed(1, 1, 1.0)
    times.passed(8, 8, 4.0)
    assert [times.seconds(number) for number in (1, 8, 16)] == pytest.approx([1.0, 4.0, 6.0])
    for _ in range(300):
        times.passed(1, 1, 1.0)
    assert [times.seconds(number) for number in (1, 8, 16)] == pytest.approx([1.0, 2.0, 3.0])


def test_no_pass_of_the_start_is_shorter_than_a_smaller_one() -> None:
    times = StepTimeModel({1: 1.0, 8: 2.0, 16: 2.0})
    times.passed(1, 1, 2.0)
    times.passed(4, 4, 6.0)
    times.passed(16, 16, 6.0)
    assert times.curve(16) == sorted(times.curve(16))


def _beside(times: dict[int, float]) -> int:
    model = StepTimeModel()
    for number, seconds in times.items():
        model.passed(number, number, seconds)
    return model.low_priority_tokens(1)


def test_tokens_beside_hardly_slow_a_pass() -> None:
    assert _beside({1: 1.0, 2: 1.5}) == 0
    assert _beside({1: 1.0, 11: 1.1}) == 3  # 1 % each
    assert _beside({1: 1.0, 200: 1.0}) == 64
    assert _beside({1: 1.0}) == 0  # no more tokens than were measured
    assert _beside({2: 1.0, 200: 1.0}) == 0  # a pass of one token was not measured
    assert StepTimeModel({1: 1.0, 11: 1.1}).low_priority_tokens(1) == 3  # in the warm-up
