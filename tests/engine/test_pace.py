"""How many tokens of a prompt may be read, from what passes have taken."""

import math

import pytest

from genai_server.engine.pace import LEAST_CHUNK, PROMPT_SHARE, Pace


def test_as_long_as_nothing_is_measured_a_chunk_is_small() -> None:
    assert Pace().chunk(100) == LEAST_CHUNK


def test_a_chunk_takes_its_share_of_all_that_the_round_has_decoded() -> None:
    pace = Pace()
    pace.prefilled(10, 1.0)
    pace.begin_round()
    pace.decoded(2.0)
    pace.decoded(3.0)
    assert pace.chunk(1000) == int(PROMPT_SHARE * 50)
    pace.begin_round()
    assert pace.chunk(1000) == LEAST_CHUNK


def test_a_prompts_tokens_are_timed_over_several_passes() -> None:
    pace = Pace()
    pace.prefilled(10, 1.0)
    pace.prefilled(10, 2.0)
    pace.decoded(13.0)
    assert pace.chunk(1000) == int(PROMPT_SHARE * 100)


@pytest.mark.parametrize("most", [2, 7, 50])
def test_no_chunk_is_longer_than_the_most(most: int) -> None:
    pace = Pace()
    pace.prefilled(1000, 0.001)
    pace.decoded(100.0)
    assert pace.chunk(most) == most


def test_what_has_not_been_measured_takes_no_time() -> None:
    pace = Pace()
    assert (pace.seconds_to_read(1000), pace.seconds_to_decode(1000)) == (0.0, 0.0)


def test_times_follow_what_was_measured_lately() -> None:
    pace = Pace()
    pace.prefilled(10, 1.0)
    for _ in range(2):
        pace.decoded(0.2)
        pace.begin_round()
    pace.begin_round()  # of a round in which nothing was decoded nothing is learned
    assert pace.seconds_to_read(30) == pytest.approx(3.0)
    assert pace.seconds_to_decode(5) == pytest.approx(1.0)
    for _ in range(50):
        pace.decoded(0.4)
        pace.begin_round()
    assert pace.seconds_to_decode(5) == pytest.approx(2.0)


def test_an_answer_is_expected_to_be_as_long_as_others_lately_and_never_to_be_over() -> None:
    pace = Pace()
    assert pace.tokens_left(3) == math.inf
    pace.answered(10)
    assert [pace.tokens_left(produced) for produced in (3, 9, 50)] == [7.0, 1.0, 1.0]
