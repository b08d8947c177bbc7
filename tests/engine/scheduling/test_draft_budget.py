"""What a draft model may cost."""

import pytest

from genai_server.engine.scheduling.model_drafts import DraftBudget

STEP = 2.0


def settled(budget: DraftBudget, *steps: float, num_rows: int = 4) -> None:
    """Settle steps that have saved this number of steps."""
    for saved in steps:
        budget.settle(num_rows, STEP, STEP * saved)


def test_a_hundredth_of_the_time_of_steps_may_be_spent() -> None:
    budget = DraftBudget()
    for _ in range(50):
        budget.passed(STEP)
    assert budget.seconds == pytest.approx(1.0)
    budget.add(-0.7)
    assert budget.seconds == pytest.approx(0.3)
    for _ in range(10_000):
        budget.passed(STEP)
    assert budget.seconds == pytest.approx(10.0)


def test_drafts_may_lose_two_steps_at_first() -> None:
    budget = DraftBudget()
    assert budget.allows(4, STEP)
    settled(budget, -0.9, -0.9)
    assert budget.allows(4, STEP)
    settled(budget, -0.9)
    assert not budget.allows(4, STEP)
    assert budget.allows(3, STEP)


def test_another_attempt_is_paid_for_by_other_steps() -> None:
    budget = DraftBudget()
    settled(budget, -0.9, -0.9, -0.9)
    num_steps = 0
    while not budget.allows(4, STEP):
        budget.passed(STEP)
        num_steps += 1
    assert num_steps == pytest.approx(100 * 1.7, abs=1)  # a step, and what was lost
    budget.begin(4, STEP)
    assert budget.seconds == pytest.approx(0, abs=0.05)
    settled(budget, -0.9)
    assert budget.allows(4, STEP)
    settled(budget, -0.2)
    assert not budget.allows(4, STEP)


def test_begin_costs_nothing_while_drafts_are_allowed() -> None:
    budget = DraftBudget()
    budget.passed(100.0)
    budget.begin(4, STEP)
    assert budget.seconds == 1.0


def test_no_more_than_six_saved_steps_may_be_lost_again() -> None:
    budget = DraftBudget()
    settled(budget, *[0.5] * 100)
    settled(budget, *[-0.5] * 12)
    assert budget.allows(4, STEP)
    settled(budget, -0.5)
    assert not budget.allows(4, STEP)


def test_disturbed_step_counts_as_one() -> None:
    budget = DraftBudget()
    settled(budget, -20.0, -0.9)
    assert budget.allows(4, STEP)


def test_savings_pay_for_what_was_read_and_no_more() -> None:
    budget = DraftBudget()
    budget.add(-1.0)
    settled(budget, 0.3, -0.3)
    assert budget.seconds == pytest.approx(-0.4)
    settled(budget, 0.3, 0.3)
    assert budget.seconds == 0.0


def test_savings_of_late_steps_are_known() -> None:
    budget = DraftBudget()
    assert budget.saved_per_step(4) is None
    settled(budget, 0.5)
    assert budget.saved_per_step(4) == 0.5
    settled(budget, *[-0.1] * 100)
    assert budget.saved_per_step(4) == pytest.approx(-0.1, abs=0.01)
    assert budget.saved_per_step(1) is None
