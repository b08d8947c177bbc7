"""Greedy answers that differ by rounding are told from those that differ for another reason."""

import pytest
from _load.greedy import Greedy, compared
from _load.step_results import Broken

ALONE = Greedy("one two", ["one", " two"], [3.0, 0.01])


def test_equal_answers_have_no_difference() -> None:
    figures = compared([ALONE], [ALONE], "alone")
    assert (figures["equal"], figures["message"]) == (1, "1 answers equal alone")


def test_a_difference_between_equally_likely_tokens_is_told() -> None:
    figures = compared([ALONE, ALONE], [ALONE, Greedy("one three", ["one", " three"], [3.0, 0.02])], "alone")
    assert (figures["equal"], figures["first_difference"], figures["differences"]) == (1, 1, {1: 1})


@pytest.mark.parametrize(
    "other", [Greedy("a two", ["a", " two"], [0.1, 0.1]), Greedy("one two!", ["one", " two", "!"], [3.0, 0.01, 1.0])]
)
def test_any_other_difference_is_a_failure(other: Greedy) -> None:
    with pytest.raises(Broken, match="more than rounding"):
        compared([ALONE], [other], "alone")


def test_an_answer_without_tokens_is_compared_by_its_text() -> None:
    assert ALONE.first_difference(Greedy("one two", [], [])) is None
    assert ALONE.first_difference(Greedy("one three", [], [])) == 1
    assert ALONE.first_difference(Greedy("", [], [])) == 0


def test_leads_are_read_from_the_two_best() -> None:
    entry = {"token": "a", "top_logprobs": [{"logprob": -2.0}, {"logprob": -0.5}]}
    choice = {"message": {"content": "a"}, "logprobs": {"content": [entry]}}
    assert Greedy.read(choice) == Greedy("a", ["a"], [1.5])
