"""Which sequences run, which wait, which are refused, and which give up their places."""

from typing import Any

import pytest

from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import KvMemory, StepPolicy
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import QueueFull
from genai_server.messages.protocol import Capacity
from tests.engine.scheduling.scheduled import (
    a_scheduler,
    a_sequence,
    admitted,
    arrive,
    asking,
    names_of,
    next_step,
    produce,
)

# queued and running


def test_sequences_are_admitted_in_order_of_arrival() -> None:
    scheduler = a_scheduler(*map(a_sequence, "abc"), max_running=2)
    assert names_of(scheduler.admit()) == ["a", "b"]
    assert (names_of(scheduler.running), names_of(list(scheduler.waiting))) == (["a", "b"], ["c"])
    assert scheduler.admit() == []


def test_removed_sequence_is_replaced_by_the_next() -> None:
    a, b, c = map(a_sequence, "abc")
    scheduler = admitted(a, b, c, max_running=1)
    scheduler.remove(b)
    scheduler.remove(a)
    assert scheduler.admit() == [c]


@pytest.mark.parametrize("admitted_first", [True, False])
def test_queue_accepts_max_running_plus_max_waiting(admitted_first: bool) -> None:
    scheduler = a_scheduler(max_running=2, max_waiting=1)
    for name in "abc":
        scheduler.add(a_sequence(name))
        if admitted_first:
            scheduler.admit()
    with pytest.raises(
        QueueFull, match=r"3 requests .* GENAI_MAX_BATCH_SIZE lets 2 run and GENAI_MAX_QUEUE lets 1 wait"
    ):
        scheduler.add(a_sequence("d"))


def test_a_queue_of_none_still_lets_requests_run() -> None:
    a = a_sequence("a")
    scheduler = a_scheduler(a, max_running=1, max_waiting=0)
    with pytest.raises(QueueFull):
        arrive(scheduler, a_sequence("b"))
    scheduler.remove(a)
    scheduler.add(a_sequence("b"))
    assert names_of(scheduler.admit()) == ["b"]


def test_lowest_priority_number_is_admitted_first() -> None:
    priorities = zip("abcde", (0, 5, 0, -1, 5), strict=True)
    scheduler = a_scheduler(*(a_sequence(name, priority=priority) for name, priority in priorities), max_running=3)
    assert names_of(scheduler.waiting) == ["d", "a", "c", "b", "e"]
    assert names_of(scheduler.admit()) == ["d", "a", "c"]


def test_repeated_prompt_waits_for_the_one_being_read() -> None:
    first, same, other = asking([1, 2, 3]), asking([1, 2, 3]), asking([1, 2, 4])
    scheduler = a_scheduler(first, same, other)
    assert scheduler.admit() == [first, other]
    assert scheduler.admit() == []
    produce(first)
    assert scheduler.admit() == [same]


def test_repeated_prompt_starts_when_the_first_is_removed() -> None:
    first, second, third = (asking([1, 2, 3]) for _ in range(3))
    scheduler = a_scheduler(first, second, third)
    assert scheduler.admit() == [first]
    scheduler.remove(first)
    assert scheduler.admit() == [second]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (asking([1, 2]), asking([1, 2], reuses_past=False)),
        (asking([1, 2], reuses_past=False), asking([1, 2])),
        (asking([1, 2], cache_salt="a"), asking([1, 2], cache_salt="b")),
        (asking([1, 2]), asking([1, 2], cache_salt="b")),
    ],
    ids=["one that reads it anew", "one whose past is not kept", "two salts", "a salt and none"],
)
def test_prompt_does_not_wait_for_an_unusable_one(first: Sequence, second: Sequence) -> None:
    assert a_scheduler(first, second).admit() == [first, second]


def test_urgent_sequence_waits_for_no_prompt() -> None:
    first, urgent = asking([1, 2]), asking([1, 2], priority=-1)
    scheduler = admitted(first)
    scheduler.add(urgent)
    assert scheduler.admit() == [urgent]


def test_a_refused_sequence_is_not_kept() -> None:
    a = a_sequence("a")
    scheduler = a_scheduler(a, max_running=1, max_waiting=0)
    with pytest.raises(QueueFull):
        scheduler.add(a_sequence("b"))
    scheduler.remove(a)
    assert scheduler.is_idle


def test_there_is_something_to_do_while_anything_waits_or_runs() -> None:
    scheduler, a = a_scheduler(), a_sequence("a")
    idle = []
    for action in (list, lambda: scheduler.add(a), scheduler.admit, lambda: scheduler.remove(a)):
        action()
        idle.append(scheduler.is_idle)
    assert idle == [True, False, False, True]


# queued prompt tokens


def _bounded(**limits: Any) -> Scheduler:
    """A scheduler with a limit of the tokens that wait."""
    return a_scheduler(**{"max_running": 1, "max_waiting": 9, "max_waiting_tokens": 100} | limits)


def test_queued_prompts_have_a_token_limit_together() -> None:
    scheduler = _bounded()
    arrive(scheduler, *(a_sequence(*pair) for pair in (("a", 500), ("b", 60), ("c", 40))))
    with pytest.raises(
        QueueFull, match=r"would have 101 tokens with this one's 1: GENAI_MAX_QUEUE_TOKENS lets 100 wait"
    ):
        scheduler.add(a_sequence("d", num_prompt=1))
    assert names_of(scheduler.waiting) == ["b", "c"]


def test_a_prompt_of_any_length_is_taken_if_it_can_run_at_once() -> None:
    scheduler = _bounded(max_running=2)
    for name in "ab":  # both are admitted in the next step
        scheduler.add(a_sequence(name, num_prompt=500))
    assert names_of(scheduler.admit()) == ["a", "b"]


def _sharing(*sequences: Sequence, num_pages: int = 10, **limits: Any) -> Scheduler:
    """A scheduler whose slots share this number of pages of ten tokens."""
    return a_scheduler(*sequences, policy=StepPolicy(memory=KvMemory(10, num_pages)), **limits)


def test_running_sequences_fit_the_memory_at_full_length() -> None:
    # Three pages each: 20 tokens of prompt, 10 of answer.
    scheduler = _sharing(*(a_sequence(name, 20) for name in "abcde"))
    assert names_of(scheduler.admit()) == ["a", "b", "c"]
    scheduler.remove(scheduler.running[1])
    assert names_of(scheduler.admit()) == ["d"]


def test_sequence_without_memory_is_not_overtaken() -> None:
    scheduler = _sharing(a_sequence("a", 20), a_sequence("b", 80), a_sequence("c"))
    assert names_of(scheduler.admit()) == ["a"]
    scheduler.remove(scheduler.running[0])
    assert names_of(scheduler.admit()) == ["b", "c"]


def test_prompts_that_wait_for_memory_count_as_waiting_tokens() -> None:
    scheduler = _sharing(a_sequence("a", 60), max_waiting_tokens=100)
    assert scheduler.free_tokens() is None
    scheduler.add(a_sequence("b", 60))
    assert scheduler.free_tokens() == 40
    with pytest.raises(QueueFull, match="would have 101 tokens with this one's 41"):
        scheduler.add(a_sequence("c", 41))


def _without_grammar(name: str, num_prompt: int = 1) -> Sequence:
    sequence = a_sequence(name, num_prompt)
    sequence.state = SequenceState.PREPARING
    return sequence


def test_sequences_waiting_for_grammars_count_in_the_queue() -> None:
    scheduler = _bounded()
    arrive(scheduler, a_sequence("a"))
    scheduler.add(_without_grammar("b", num_prompt=60))
    assert (scheduler.num_free(), scheduler.free_tokens()) == (8, 40)
    with pytest.raises(QueueFull):
        scheduler.add(a_sequence("c", num_prompt=41))
    scheduler.add(a_sequence("c", num_prompt=40))


def test_sequence_waiting_for_its_grammar_keeps_its_place() -> None:
    a, b, c = _without_grammar("a"), a_sequence("b"), a_sequence("c")
    scheduler = a_scheduler(a, max_running=1)
    assert scheduler.is_idle
    scheduler.add(b)
    scheduler.add(c)
    assert scheduler.admit() == [b]
    a.state = SequenceState.WAITING
    scheduler.remove(b)
    assert scheduler.admit() == [a]


def test_capacity_of_an_idle_device_is_known() -> None:
    assert _bounded(max_running=2).capacity == Capacity(running=2, waiting=9, waiting_tokens=100)
    assert _bounded(max_waiting_tokens=0).capacity.waiting_tokens is None
    assert Capacity(2, 9).requests == 11


def test_free_capacity_is_given_in_requests_and_tokens() -> None:
    scheduler = _bounded(max_running=2, max_waiting=2)
    found = [(scheduler.num_free(), scheduler.free_tokens())]
    for name in "abcd":
        arrive(scheduler, a_sequence(name, 30))
        found.append((scheduler.num_free(), scheduler.free_tokens()))
    assert found == [(4, None), (3, None), (2, 100), (1, 70), (0, 40)]


def test_queue_without_a_token_limit_accepts_any_number() -> None:
    scheduler = _bounded(max_waiting_tokens=0)
    for name in "abc":
        scheduler.add(a_sequence(name, num_prompt=10**6))
    assert scheduler.free_tokens() is None


def test_refusal_estimates_when_the_queue_has_capacity() -> None:
    scheduler = _bounded(max_waiting=1)
    running = a_sequence("a", num_prompt=4, batched=True)
    arrive(scheduler, running)
    for seconds in (8.0, 1.0, 1.0):  # 2 s per prompt token
        scheduler.observe(next_step(scheduler), seconds)
        produce(running)
    scheduler.add(a_sequence("b", num_prompt=100))
    with pytest.raises(QueueFull) as full:
        scheduler.add(a_sequence("c"))
    # 10 tokens were allowed, of which 7 are left
    assert full.value.retry_after == 7
    scheduler = _bounded()
    scheduler.add(a_sequence("a"))
    with pytest.raises(QueueFull) as full:
        scheduler.add(a_sequence("b", num_prompt=101))
    assert full.value.retry_after == 1  # nothing was measured
