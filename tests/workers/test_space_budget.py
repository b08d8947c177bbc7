"""Disk space for decoded recordings: never more than the budget, and always some for another key."""

import asyncio
import random
from collections.abc import Callable

from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.workers.space_budget import Reservation, SpaceBudget

A, B, C = (TaskOwner(key) for key in "abc")


def _run(test: Callable[[], None]) -> None:
    async def main() -> None:
        test()

    asyncio.run(main())


def _is_granted(*reservations: Reservation) -> list[bool]:
    return [reservation.granted.done() for reservation in reservations]


def test_one_key_has_half_of_the_space() -> None:
    def test() -> None:
        budget = SpaceBudget(100)
        first, second, third = (budget.reserve(A, num_bytes) for num_bytes in (30, 20, 1))
        assert _is_granted(first, second, third) == [True, True, False]
        budget.resize(first, 29)
        assert _is_granted(third) == [True]

    _run(test)


def test_there_is_space_for_another_key() -> None:
    def test() -> None:
        budget = SpaceBudget(100)
        for _ in range(100):
            budget.reserve(A, 5)
        assert budget.num_bytes == 50
        assert _is_granted(*(budget.reserve(B, 5) for _ in range(6))) == [True] * 5 + [False]
        assert _is_granted(budget.reserve(C, 12)) == [True]

    _run(test)


def test_the_key_with_the_fewest_bytes_comes_first_and_the_background_last() -> None:
    def test() -> None:
        budget = SpaceBudget(100)
        taken = budget.reserve(A, 50)
        batch, more, other = (
            budget.reserve(TaskOwner("b", low_priority=True), 30),
            budget.reserve(A, 26),
            budget.reserve(C, 26),
        )
        assert _is_granted(batch, more, other) == [False, False, False]
        budget.resize(taken, 20)
        assert _is_granted(batch, more, other) == [False, False, True]
        budget.resize(other, 0)
        assert _is_granted(batch, more) == [False, True]

    _run(test)


def test_keys_with_more_do_not_pass_a_key_with_less_but_its_own_requests_do() -> None:
    def test() -> None:
        budget = SpaceBudget(100)
        taken = [budget.reserve(owner, 25) for owner in (A, B)]
        large = budget.reserve(C, 30)
        small = [budget.reserve(owner, 1) for owner in (A, C)]
        assert _is_granted(large, *small) == [False, False, True]
        budget.resize(taken[0], 0)
        assert _is_granted(large, *small) == [True, True, True]

    _run(test)


def test_whoever_leaves_waits_no_longer() -> None:
    def test() -> None:
        budget = SpaceBudget(100)
        taken, left, waiting = budget.reserve(A, 50), budget.reserve(A, 50), budget.reserve(A, 50)
        budget.resize(left, 0)
        budget.resize(taken, 0)
        assert _is_granted(left, waiting) == [False, True]
        budget.resize(taken, 0)
        budget.resize(waiting, 0)
        assert budget.num_bytes == 0

    _run(test)


def test_a_hundred_uploads_never_exceed_the_budget() -> None:
    def test() -> None:
        chance, budget = random.Random(0), SpaceBudget(1_000)
        held = [budget.reserve(TaskOwner(chance.choice("abcd")), 224) for _ in range(100)]
        while held:
            assert budget.num_bytes <= 1_000
            one = chance.choice([reservation for reservation in held if reservation.granted.done()])
            if chance.random() < 0.5:
                budget.resize(one, min(one.num_bytes, chance.randint(1, 224)))
            else:
                budget.resize(one, 0)
                held.remove(one)
        assert budget.num_bytes == 0

    _run(test)
