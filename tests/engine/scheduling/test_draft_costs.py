"""What steps with drafts take."""

import pytest

from genai_server.engine.scheduling.drafts import NO_DRAFT, Draft
from genai_server.engine.scheduling.model_drafts import DraftCosts
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel


def measured(seconds: dict[int, float]) -> StepTimeModel:
    found = StepTimeModel()
    for number, each in seconds.items():
        found.passed(number, number, each)
    return found


def times(first: float, further: float) -> StepTimeModel:
    return measured({number: first + further * (number - 1) for number in (1, MAX_DRAFTED)})


def costs(num_rows: int, further: float = 0.1, draft: float = 0.2) -> DraftCosts:
    """A step of one token takes a second."""
    return DraftCosts(num_rows, times(1.0, further), times(draft, 0.0))


def test_costs_are_those_of_passes() -> None:
    found = costs(4)
    assert (found.plain, found.per_token) == pytest.approx((1.3, 1.3 / 4))
    assert (found.of_step(0), found.of_step(3)) == pytest.approx((1.3, 1.6))
    assert found.of_token(3) == pytest.approx(0.1 + 0.2)
    assert found.of_step(1000) == pytest.approx(1.0 + 0.1 * 63)


def test_tokens_to_read_before_a_draft_count() -> None:
    found = DraftCosts(1, times(1.0, 0.1), times(0.2, 0.01))
    assert found.of_token(0, 11) - found.of_token(0, 1) == pytest.approx(0.1)


def test_token_of_one_row_saves_what_that_row_costs_a_step() -> None:
    assert costs(1).alone == 1.0
    assert costs(4).alone == pytest.approx(0.1 / (1.3 / 4))
    assert costs(4, further=1.0).alone == 1.0


def test_drafts_of_all_rows_are_worth_more_than_those_of_one() -> None:
    draft = Draft((), 0.9, num_unmade=1, num_unread=1)
    found = costs(2, further=0.2)
    assert found.fit([draft, draft]).lengths == [1, 1]
    assert found.fit([draft, NO_DRAFT]).lengths == [0, 0]
    assert found.fit([draft, draft]).worth == pytest.approx(1.0)


def test_rows_with_drafts_end_earlier_and_the_others_do_not() -> None:
    """A step of four rows takes 1.3 s, one of a single row 1 s: three rows that end earlier save 0.1 s each."""
    draft = Draft((), 0.9, num_unmade=1, num_unread=1)
    rows = DraftCosts(4, measured({1: 1.0, 4: 1.3, 8: 1.31}), times(0.001, 0.0))
    assert rows.fit([draft] * 4).worth == pytest.approx(1.0)
    three = rows.fit([draft] * 3 + [NO_DRAFT])
    assert three.lengths == [1, 1, 1, 0]
    assert three.worth == pytest.approx(0.1 / (1.3 / 4))


def test_best_drafts_save_nothing_in_a_large_batch() -> None:
    assert costs(1).max_saved > 0.4 * costs(1).per_token
    assert costs(32, further=1.0).max_saved == 0.0
