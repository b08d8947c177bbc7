"""How many tokens of a prompt may be read, from what passes have taken."""

import math

import pytest

from genai_server.engine.scheduling.step_time import LEAST_CHUNK, PROMPT_SHARE, StepTimeModel


def test_as_long_as_nothing_is_measured_a_chunk_is_small() -> None:
    assert StepTimeModel().chunk(100) == LEAST_CHUNK


def test_a_chunk_takes_its_share_of_all_that_the_round_has_decoded() -> None:
    step_times = StepTimeModel()
    step_times.prefilled(10, 1.0)
    step_times.begin_round()
    step_times.decoded(1, 2.0)
    step_times.decoded(1, 3.0)
    assert step_times.chunk(1000) == int(PROMPT_SHARE * 50)
    step_times.begin_round()
    assert step_times.chunk(1000) == LEAST_CHUNK


def test_a_prompts_tokens_are_timed_over_several_passes() -> None:
    step_times = StepTimeModel()
    step_times.prefilled(10, 1.0)
    step_times.prefilled(10, 2.0)
    step_times.decoded(1, 13.0)
    assert step_times.chunk(1000) == int(PROMPT_SHARE * 100)


@pytest.mark.parametrize("most", [2, 7, 50])
def test_no_chunk_is_longer_than_the_most(most: int) -> None:
    step_times = StepTimeModel()
    step_times.prefilled(1000, 0.001)
    step_times.decoded(1, 100.0)
    assert step_times.chunk(most) == most


def test_what_has_not_been_measured_takes_no_time() -> None:
    step_times = StepTimeModel()
    assert (step_times.seconds_to_read(1000), step_times.seconds_to_decode(1000)) == (0.0, 0.0)


def test_times_follow_what_was_measured_lately() -> None:
    step_times = StepTimeModel()
    step_times.prefilled(10, 1.0)
    for _ in range(2):
        step_times.decoded(1, 0.2)
        step_times.begin_round()
    step_times.begin_round()  # of a round in which nothing was decoded nothing is learned
    assert step_times.seconds_to_read(30) == pytest.approx(3.0)
    assert step_times.seconds_to_decode(5) == pytest.approx(1.0)
    for _ in range(50):
        step_times.decoded(1, 0.4)
        step_times.begin_round()
    assert step_times.seconds_to_decode(5) == pytest.approx(2.0)


def test_an_answer_is_expected_to_be_as_long_as_others_lately_and_never_to_be_over() -> None:
    step_times = StepTimeModel()
    assert step_times.tokens_left(3) == math.inf
    step_times.answered(10)
    assert [step_times.tokens_left(produced) for produced in (3, 9, 50)] == [7.0, 1.0, 1.0]


def test_of_a_mixed_pass_what_decoding_takes_is_not_counted_for_the_prompt() -> None:
    step_times = StepTimeModel()
    step_times.decoded(4, 0.1)
    step_times.mixed(4, 50, 0.2)
    assert step_times.seconds_to_read(100) == pytest.approx(0.2)


def test_a_mixed_pass_before_any_other_is_shared_by_tokens() -> None:
    step_times = StepTimeModel()
    step_times.mixed(10, 40, 1.0)
    assert step_times.seconds_to_read(40) == pytest.approx(0.8)


def test_what_decoding_takes_is_known_by_the_nearest_number_of_rows() -> None:
    step_times = StepTimeModel()
    assert step_times.seconds_to_step(3) == 0.0
    step_times.decoded(1, 0.1)
    step_times.decoded(8, 0.4)
    assert [step_times.seconds_to_step(rows) for rows in (1, 3, 6, 16)] == [0.1, 0.1, 0.4, 0.4]


def test_how_many_tokens_are_read_in_a_time() -> None:
    step_times = StepTimeModel()
    assert step_times.tokens_read_in(10.0) == 0.0
    step_times.prefilled(10, 1.0)
    assert step_times.tokens_read_in(2.0) == pytest.approx(20)


# passes of a lone sequence


def test_what_a_pass_with_a_draft_takes_is_estimated_from_others() -> None:
    times = StepTimeModel()
    assert times.seconds_to_verify(4) == 0.0
    times.decoded(1, 1.0)
    assert times.seconds_to_verify(1) == 1.0
    assert 1.0 < times.seconds_to_verify(4) < 2.0
    times.verified(4, 2.5)
    assert times.seconds_to_verify(4) == 2.5
    assert times.seconds_to_verify(3) == pytest.approx(2.0)
    assert times.seconds_to_verify(8) == pytest.approx(4.5)


def test_no_pass_with_a_draft_is_estimated_shorter_than_one_without() -> None:
    times = StepTimeModel()
    times.decoded(1, 2.0)
    times.verified(3, 1.0)
    assert [times.seconds_to_verify(number) for number in (2, 3, 8, 16)] == [2.0] * 4


def test_a_slow_pass_with_a_draft_counts_less_than_a_fast_one() -> None:
    times = StepTimeModel()
    times.decoded(1, 1.0)
    times.verified(4, 2.0)
    times.verified(4, 12.0)
    assert times.seconds_to_verify(4) == pytest.approx(3.0)
    times.verified(4, 1.0)
    assert times.seconds_to_verify(4) == pytest.approx(2.0)


def test_a_pass_with_a_draft_is_no_measure_of_decoding() -> None:
    times = StepTimeModel()
    times.decoded(1, 1.0)
    times.verified(4, 3.0)
    times.begin_round()
    assert times.seconds_to_step(1) == 1.0
    assert times.seconds_to_decode(10) == 10.0
