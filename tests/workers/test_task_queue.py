"""Whose task comes next: turns between keys and requests, low priority, and tasks that nobody waits for any more."""

from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.workers.task_queue import TaskQueue
from tests.hand_clock import HandClock

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


def test_tasks_of_one_request_keep_their_order() -> None:
    seen = Seen()
    seen.add("a1.0", "a1.1", "a1.2")
    assert seen.all() == "a1.0 a1.1 a1.2"


def test_requests_of_a_key_take_turns() -> None:
    seen = Seen()
    seen.add("a1.0", "a1.1", "a1.2", "a2.0", "a3.0", "a3.1")
    assert seen.all() == "a1.0 a2.0 a3.0 a1.1 a3.1 a1.2"


def test_more_requests_are_no_larger_share() -> None:
    seen = Seen()
    seen.add(*(f"a{number}.0" for number in range(1, 6)), "b1.0", "b1.1")
    assert seen.all() == "a1.0 b1.0 a2.0 b1.1 a3.0 a4.0 a5.0"


def test_turns_count_seconds_and_not_tasks() -> None:
    seen = Seen()
    seen.add("a1.0", "a1.1", *(f"b1.{number}" for number in range(5)))
    assert seen.run(3.0) == "a1.0"
    assert seen.all() == "b1.0 b1.1 b1.2 a1.1 b1.3 b1.4"


def test_a_key_that_comes_later_has_no_advantage_and_no_arrears() -> None:
    seen = Seen()
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


def test_a_task_that_nobody_waits_for_is_not_run() -> None:
    seen = Seen()
    seen.add("a1.0", "a1.1", "b1.0")
    seen.abandon("a1.0")
    seen.abandon("b1.0")
    assert list(seen.queue.waiting) == ["a1.1"]
    assert seen.all() == "a1.1"


def test_a_running_task_that_nobody_waits_for_ends_where_it_holds_up_others() -> None:
    seen = Seen()
    seen.add("a1.0", "a2.0")
    assert seen.start_all() == ["a1.0"]
    seen.abandon("a1.0")
    seen.clock.now = GRACE / 2
    assert seen.queue.overdue() == []
    seen.clock.now = GRACE
    assert seen.queue.overdue() == ["a1.0"]
    seen.abandon("a2.0")
    assert seen.queue.overdue() == []


def test_tasks_that_have_ended_can_be_abandoned() -> None:
    seen = Seen()
    seen.add("a1.0", "a1.1")
    assert seen.run() == "a1.0"
    seen.abandon("a1.0")
    assert seen.all() == "a1.1"
    assert not list(seen.queue.running)


def test_nothing_is_remembered_of_what_has_ended() -> None:
    seen = Seen()
    for number in range(50):
        seen.add(f"a{number}.0", f"b{number}.0")
        seen.all()
    assert seen.queue._requests == {}
    assert seen.queue._waiting == {False: {}, True: {}}
    seen.add("a1.0", "b1.0")
    assert seen.all() == "a1.0 b1.0"
