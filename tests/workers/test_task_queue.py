"""Whose task comes next: turns between keys and requests, low priority, and tasks that nobody waits for any more."""

import random

import pytest

from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.workers.task_queue import Reservation, SpaceBudget, TaskQueue
from tests.hand_clock import HandClock

pytestmark = pytest.mark.anyio

GRACE = 1.0


class Seen:
    """A queue, and the tasks in it by name."""

    def __init__(self, slots: int = 1) -> None:
        self.clock = HandClock()
        self.clock.now = 0.0
        self.queue: TaskQueue[str] = TaskQueue(slots, self.clock, GRACE)
        self._owners: dict[str, TaskOwner] = {}

    def add(self, *tasks: str, low_priority: bool = False) -> None:
        """Add tasks, each named by its key, its request and a number: `a1.0`."""
        for task in tasks:
            self._owners[task] = TaskOwner(task[0], task.partition(".")[0], low_priority)
            self.queue.add(task, self._owners[task])

    def abandon(self, task: str) -> None:
        self.queue.abandon(task, self._owners[task])

    def run(self, seconds: float = 1.0) -> str | None:
        """Run the next task alone, for so long."""
        task = self.queue.next()
        if task is not None:
            self.clock.wait(seconds)
            self.queue.finish(task)
        return task

    def start_all(self) -> list[str]:
        """Start as many tasks as may run."""
        started = []
        while (task := self.queue.next()) is not None:
            started.append(task)
        return started

    def all(self, seconds: float = 1.0) -> str:
        """The order in which all tasks run, one after the other."""
        order = []
        while (task := self.run(seconds)) is not None:
            order.append(task)
        return " ".join(order)


@pytest.fixture
def seen() -> Seen:
    """A queue for one task at a time."""
    return Seen()


@pytest.mark.parametrize(
    ("tasks", "order"),
    [
        ("a1.0 a1.1 a1.2", "a1.0 a1.1 a1.2"),
        ("a1.0 a1.1 a1.2 a2.0 a3.0 a3.1", "a1.0 a2.0 a3.0 a1.1 a3.1 a1.2"),
        ("a1.0 a2.0 a3.0 a4.0 a5.0 b1.0 b1.1", "a1.0 b1.0 a2.0 b1.1 a3.0 a4.0 a5.0"),
    ],
    ids=["tasks of a request keep their order", "requests of a key take turns", "more requests are no larger share"],
)
def test_keys_and_their_requests_take_turns(seen: Seen, tasks: str, order: str) -> None:
    seen.add(*tasks.split())
    assert seen.all() == order


def test_turns_count_seconds_and_not_tasks(seen: Seen) -> None:
    seen.add("a1.0", "a1.1", *(f"b1.{number}" for number in range(5)))
    assert seen.run(3.0) == "a1.0"
    assert seen.all() == "b1.0 b1.1 b1.2 a1.1 b1.3 b1.4"


def test_a_key_that_comes_later_has_no_advantage_and_no_arrears(seen: Seen) -> None:
    seen.add(*(f"a1.{number}" for number in range(12)))
    for _ in range(8):
        seen.run()
    seen.add("b1.0", "b1.1", "b1.2")
    assert seen.all() == "b1.0 a1.8 b1.1 a1.9 b1.2 a1.10 a1.11"


def test_what_runs_counts_already() -> None:
    seen = Seen(slots=2)
    seen.add("a1.0", "b1.0")
    assert seen.start_all() == ["a1.0", "b1.0"]
    seen.add("a1.1", "b1.1", "c1.0")
    seen.clock.now = 0.5
    seen.queue.finish("b1.0")
    seen.clock.now = 2.0
    assert seen.start_all() == ["c1.0", "b1.1"]


def test_a_key_without_a_running_task_need_not_wait_for_a_slot() -> None:
    seen = Seen(slots=2)
    seen.add("a1.0", "a1.1", "a1.2", "b1.0", "c1.0")
    assert seen.start_all() == ["a1.0", "b1.0", "c1.0"]
    seen.add("b1.1")
    assert seen.start_all() == []
    seen.queue.finish("c1.0")
    assert seen.start_all() == []
    seen.queue.finish("b1.0")
    assert seen.start_all() == ["b1.1"]


def test_one_key_has_its_slots_only() -> None:
    seen = Seen(slots=2)
    seen.add("a1.0", "a1.1", "a2.0", "a3.0")
    assert seen.start_all() == ["a1.0", "a2.0"]


def test_the_background_comes_last_and_leaves_a_slot_free() -> None:
    seen = Seen(slots=2)
    seen.add("a1.0", "a1.1", "a2.0", low_priority=True)
    assert seen.start_all() == ["a1.0"]
    seen.add("a3.0", "a3.1", "a3.2")
    assert seen.start_all() == ["a3.0"]
    seen.queue.finish("a1.0")
    assert seen.start_all() == ["a3.1"]
    seen.queue.finish("a3.0")
    assert seen.start_all() == ["a3.2"]
    seen.queue.finish("a3.1")
    assert seen.start_all() == ["a1.1"]


def test_a_task_that_nobody_waits_for_is_not_run(seen: Seen) -> None:
    seen.add("a1.0", "a1.1", "b1.0")
    seen.abandon("a1.0")
    seen.abandon("b1.0")
    assert list(seen.queue.waiting) == ["a1.1"]
    assert seen.all() == "a1.1"


def test_a_running_task_that_nobody_waits_for_ends_where_it_holds_up_others(seen: Seen) -> None:
    seen.add("a1.0", "a2.0")
    assert seen.start_all() == ["a1.0"]
    seen.abandon("a1.0")
    seen.clock.now = GRACE / 2
    assert seen.queue.overdue() == []
    seen.clock.now = GRACE
    assert seen.queue.overdue() == ["a1.0"]
    seen.abandon("a2.0")
    assert seen.queue.overdue() == []


def test_tasks_that_have_ended_can_be_abandoned(seen: Seen) -> None:
    seen.add("a1.0", "a1.1")
    assert seen.run() == "a1.0"
    seen.abandon("a1.0")
    assert seen.all() == "a1.1"
    assert not list(seen.queue.running)


def test_nothing_is_remembered_of_what_has_ended(seen: Seen) -> None:
    for number in range(50):
        seen.add(f"a{number}.0", f"b{number}.0")
        seen.all()
    assert seen.queue._requests == {}
    assert seen.queue._waiting == {False: {}, True: {}}
    seen.add("a1.0", "b1.0")
    assert seen.all() == "a1.0 b1.0"


A, B, C = (TaskOwner(key) for key in "abc")


def _is_granted(*reservations: Reservation) -> list[bool]:
    return [reservation.granted.done() for reservation in reservations]


async def test_one_key_has_half_of_the_space() -> None:
    budget = SpaceBudget(100)
    first, second, third = (budget.reserve(A, num_bytes) for num_bytes in (30, 20, 1))
    assert _is_granted(first, second, third) == [True, True, False]
    budget.resize(first, 29)
    assert _is_granted(third) == [True]


async def test_there_is_space_for_another_key() -> None:
    budget = SpaceBudget(100)
    for _ in range(100):
        budget.reserve(A, 5)
    assert budget.num_bytes == 50
    assert _is_granted(*(budget.reserve(B, 5) for _ in range(6))) == [True] * 5 + [False]
    assert _is_granted(budget.reserve(C, 12)) == [True]


async def test_the_key_with_the_fewest_bytes_comes_first_and_the_background_last() -> None:
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


async def test_keys_with_more_do_not_pass_a_key_with_less_but_its_own_requests_do() -> None:
    budget = SpaceBudget(100)
    taken = [budget.reserve(owner, 25) for owner in (A, B)]
    large = budget.reserve(C, 30)
    small = [budget.reserve(owner, 1) for owner in (A, C)]
    assert _is_granted(large, *small) == [False, False, True]
    budget.resize(taken[0], 0)
    assert _is_granted(large, *small) == [True, True, True]


async def test_whoever_leaves_waits_no_longer() -> None:
    budget = SpaceBudget(100)
    taken, left, waiting = budget.reserve(A, 50), budget.reserve(A, 50), budget.reserve(A, 50)
    budget.resize(left, 0)
    budget.resize(taken, 0)
    assert _is_granted(left, waiting) == [False, True]
    budget.resize(taken, 0)
    budget.resize(waiting, 0)
    assert budget.num_bytes == 0


async def test_a_hundred_uploads_never_exceed_the_budget() -> None:
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
