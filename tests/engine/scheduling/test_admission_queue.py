"""Which sequences run, which wait, which are refused, and which give up their places."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import KvBudget, KvMemory, StepPolicy
from genai_server.engine.sequence import LoadedAdapter, Sequence, SequenceState
from genai_server.errors import QueueFull
from genai_server.messages.engine_protocol import Capacity
from genai_server.messages.generation_request import GenerationRequest
from tests.engine.scheduling.scheduled import (
    a_scheduler,
    a_sequence,
    able_runner,
    admitted,
    arrive,
    asking,
    free_tokens,
    names_of,
    next_step,
    num_free,
    preemptions,
    produce,
)
from tests.hand_clock import HandClock

# queued and running


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


def test_sequences_are_admitted_in_order_of_priority_and_arrival() -> None:
    priorities = zip("abcde", (0, 5, 0, -1, 5), strict=True)
    scheduler = a_scheduler(*(a_sequence(name, priority=priority) for name, priority in priorities), max_running=3)
    assert names_of(scheduler.waiting) == ["d", "a", "c", "b", "e"]
    assert names_of(scheduler.admit()) == ["d", "a", "c"]
    assert (names_of(scheduler.running), names_of(scheduler.waiting)) == (["d", "a", "c"], ["b", "e"])
    assert scheduler.admit() == []


@pytest.mark.parametrize("end", [lambda scheduler, first: produce(first), Scheduler.remove])
def test_repeated_prompt_waits_for_the_one_being_read(end: Callable[[Scheduler, Sequence], None]) -> None:
    first, same, other = asking([1, 2, 3]), asking([1, 2, 3]), asking([1, 2, 4])
    scheduler = a_scheduler(first, same, other)
    assert scheduler.admit() == [first, other]
    assert scheduler.admit() == []
    end(scheduler, first)
    assert scheduler.admit() == [same]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"reuses_past": False}),
        ({"reuses_past": False}, {}),
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({}, {"cache_salt": "b"}),
        ({}, {"priority": -1}),
    ],
    ids=["one that reads it anew", "one whose past is not kept", "two salts", "a salt and none", "an urgent one"],
)
def test_prompt_does_not_wait_for_an_unusable_one(first: dict[str, Any], second: dict[str, Any]) -> None:
    scheduler, other = admitted(asking([1, 2], **first)), asking([1, 2], **second)
    scheduler.add(other)
    assert scheduler.admit() == [other]


def test_there_is_something_to_do_while_anything_waits_or_runs_but_not_for_what_is_refused() -> None:
    scheduler, a = a_scheduler(max_running=1, max_waiting=0), a_sequence("a")
    for action, is_idle in (
        (lambda: scheduler.add(a), False),
        (scheduler.admit, False),
        (lambda: scheduler.remove(a), True),
    ):
        action()
        assert scheduler.is_idle is is_idle
        if not is_idle:
            with pytest.raises(QueueFull):
                scheduler.add(a_sequence("b"))


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


def _growing(*sequences: Sequence, num_pages: int, **limits: Any) -> Scheduler:
    """The same with a runner whose sequences take pages as their tokens come."""
    return _sharing(*sequences, num_pages=num_pages, **{"runner": able_runner()} | limits)


def _long(name: str, number: int = 0, num_prompt: int = 20, **fields: Any) -> Sequence:
    """A sequence that may have 2000 tokens."""
    request = GenerationRequest(name, [1] * num_prompt, 2000 - num_prompt, 2000, **fields)
    return Sequence(number, (0, number), request, lambda: 0.0)


def test_answers_run_together_by_their_expected_lengths() -> None:
    scheduler = _growing(*(_long(name) for name in "abcdefgh"), num_pages=200)
    # 20 tokens of prompt, and 512 expected before any answer has ended: 53 pages.
    assert names_of(scheduler.admit()) == ["a", "b", "c"]
    for _ in range(50):
        scheduler._step_times.answered(20)
    # At least 256 tokens more are kept for each: 27 pages.
    assert names_of(scheduler.admit()) == ["d", "e", "f", "g"]
    for _ in range(50):
        scheduler._step_times.answered(1000)
    scheduler.remove(scheduler.running[0])
    assert scheduler.admit() == []


def test_last_sequences_are_preempted_when_the_memory_gets_short() -> None:
    a, b, c = sequences = [_long(name, number) for number, name in enumerate("abc")]
    scheduler = _growing(*sequences, num_pages=200)
    preempted = preemptions(scheduler)
    assert len(scheduler.admit()) == 3
    for sequence in sequences:
        sequence.tokens += [5] * 560
        sequence.num_read = 580
    scheduler.make_room()
    assert preempted == []  # 64 pages each, with 64 tokens more
    a.tokens += [5] * 100
    scheduler.make_room()
    assert preempted == names_of(scheduler.waiting) == ["c"]
    assert c.num_read == 0
    assert scheduler.admit() == []
    scheduler.remove(b)
    assert scheduler.admit() == [c]


def test_a_preempted_sequence_keeps_its_place_among_the_waiting() -> None:
    first, second = _long("a", 0), _long("b", 1, priority=-1)
    scheduler = _growing(first, second, num_pages=120)
    assert len(scheduler.admit()) == 2
    second.tokens += [5] * 1100
    scheduler.make_room()
    assert names_of(scheduler.running) == ["b"]
    scheduler.add(_long("c", 2))
    scheduler.remove(second)
    assert names_of(scheduler.admit())[0] == "a"


def test_profiled_sequences_of_a_batch_need_memory_as_others_do() -> None:
    profiled, other = _long("a", 0, num_prompt=1000), _long("b", 1)
    scheduler = _growing(profiled, other, num_pages=205)
    profiled.profile.switch("prefix", 0)
    scheduler.admit()
    for num_more, running in ((0, ["a", "b"]), (700, ["a"])):
        for sequence in (profiled, other):
            sequence.tokens += [5] * num_more
        scheduler.make_room()
        assert names_of(scheduler.running) == running


@pytest.mark.parametrize(("is_batched", "running"), [(True, ["a", "b", "c"]), (False, ["a"])])
def test_adapters_in_the_batch_need_memory_as_others_do(is_batched: bool, running: list[str]) -> None:
    runner = able_runner()
    runner.abilities = replace(runner.abilities, adapters=is_batched)
    sequences = [_long(name, number) for number, name in enumerate("abcd")]
    for sequence in sequences:
        sequence.adapter = LoadedAdapter("digest", None)
    assert names_of(_growing(*sequences, num_pages=200, runner=runner).admit()) == running


def test_a_sequence_alone_is_never_preempted() -> None:
    alone = _long("a")
    scheduler = _growing(alone, num_pages=200)
    scheduler.admit()
    alone.tokens += [5] * 1979
    scheduler.make_room()
    assert scheduler.running == [alone]


def test_sequence_without_memory_is_not_overtaken() -> None:
    scheduler = _sharing(a_sequence("a", 20), a_sequence("b", 80), a_sequence("c"))
    assert names_of(scheduler.admit()) == ["a"]
    scheduler.remove(scheduler.running[0])
    assert names_of(scheduler.admit()) == ["b", "c"]


def test_prompts_that_wait_for_memory_count_as_waiting_tokens() -> None:
    scheduler = _sharing(a_sequence("a", 60), max_waiting_tokens=100)
    assert free_tokens(scheduler) is None
    scheduler.add(a_sequence("b", 60))
    assert free_tokens(scheduler) == 40
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
    assert (num_free(scheduler), free_tokens(scheduler)) == (8, 40)
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
    found = [(num_free(scheduler), free_tokens(scheduler))]
    for name in "abcd":
        arrive(scheduler, a_sequence(name, 30))
        found.append((num_free(scheduler), free_tokens(scheduler)))
    assert found == [(4, None), (3, None), (2, 100), (1, 70), (0, 40)]


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


# low priority


def _background(name: str, num_prompt: int = 1, **how: Any) -> Sequence:
    found = a_sequence(name, num_prompt, low_priority=True, **how)
    found.id = ord(name)
    return found


def test_background_waits_behind_all_others() -> None:
    clock = HandClock()
    early = Sequence(0, (0, 0), GenerationRequest("b", [1], 10, 2000, low_priority=True, priority=-9), clock)
    scheduler = a_scheduler(early, max_running=2)
    clock.wait(3600)
    for name in "xy":
        scheduler.add(a_sequence(name, priority=9))
    assert names_of(scheduler.waiting) == ["x", "y", "b"]
    assert names_of(scheduler.admit()) == ["x", "y"]


def test_queues_of_background_and_others_have_own_limits() -> None:
    scheduler = a_scheduler(max_running=1, max_waiting=1)
    for name in "bc":
        scheduler.add(_background(name))
    with pytest.raises(QueueFull, match=r"2 requests .* GENAI_MAX_BATCH_SIZE lets 1 run and GENAI_MAX_QUEUE lets 1"):
        scheduler.add(_background("d"))
    assert (num_free(scheduler), num_free(scheduler, low_priority=True)) == (2, 0)
    for name in "xy":
        scheduler.add(a_sequence(name))
    with pytest.raises(QueueFull, match="2 requests"):
        scheduler.add(a_sequence("z"))
    assert names_of(scheduler.waiting) == ["x", "y", "b", "c"]


def test_background_prompts_do_not_count_as_others_tokens() -> None:
    scheduler = _bounded(max_waiting=9)
    arrive(scheduler, *(_background(name, 60) for name in "bc"))
    assert free_tokens(scheduler) is None
    with pytest.raises(QueueFull, match="would have 101 tokens with this one's 41"):
        scheduler.add(_background("d", 41))
    arrive(scheduler, a_sequence("x", 70))  # it runs at once, in the place of b
    assert (names_of(scheduler.running), free_tokens(scheduler)) == (["x"], 100)
    scheduler.add(a_sequence("y", 100))


def test_newest_of_the_background_gives_its_place_to_others() -> None:
    scheduler = admitted(*map(_background, "abc"), max_running=4)
    preempted = preemptions(scheduler)
    for name, gone, running in (
        ("w", [], ["a", "b", "c", "w"]),
        ("x", ["c"], ["a", "b", "w", "x"]),
        ("y", ["c", "b"], ["a", "w", "x", "y"]),
    ):
        arrive(scheduler, a_sequence(name))
        assert (preempted, names_of(scheduler.running)) == (gone, running)
    assert names_of(scheduler.waiting) == ["b", "c"]
    scheduler.remove(scheduler.running[-1])
    assert names_of(scheduler.admit()) == ["b"]


def test_memory_of_the_background_is_freed_for_others_but_not_in_vain() -> None:
    scheduler = _sharing(*(_background(name, 20) for name in "abc"))  # three pages each, of ten
    scheduler.admit()
    preempted = preemptions(scheduler)
    arrive(scheduler, a_sequence("x", 50))
    assert (preempted, names_of(scheduler.running)) == (["c", "b"], ["a", "x"])
    arrive(scheduler, a_sequence("y", 60))
    assert (preempted, names_of(scheduler.running)) == (["c", "b"], ["a", "x"])


def test_others_do_not_wait_for_a_prompt_of_the_background() -> None:
    scheduler, other = admitted(asking([1, 2, 3], low_priority=True)), asking([1, 2, 3])
    scheduler.add(other)
    assert scheduler.admit() == [other]
    scheduler = admitted(asking([1, 2, 3]))
    scheduler.add(asking([1, 2, 3], low_priority=True))
    assert scheduler.admit() == []


def test_sequence_whose_token_is_being_chosen_stays_preempted() -> None:
    b, x = _background("b"), a_sequence("x")
    scheduler = admitted(b, max_running=1)
    b.is_choosing = True
    arrive(scheduler, x)
    scheduler.remove(x)
    assert scheduler.admit() == []
    b.is_choosing = False
    assert scheduler.admit() == [b]


class _Keeping(ScriptedRunner):
    """A runner that has cached prefixes in idle slots."""

    num_reserved = 0

    def reserved(self, maximum: int) -> KvBudget:
        return KvBudget(min(maximum, self.num_reserved), 0)


def test_recent_prefixes_keep_half_of_the_places() -> None:
    runner = _Keeping()
    runner.num_reserved = 3
    scheduler = admitted(*map(_background, "abcdef"), max_running=6, runner=runner)
    assert names_of(scheduler.running) == ["a", "b", "c"]
    preempted = preemptions(scheduler)
    x = a_sequence("x")
    arrive(scheduler, x)  # it takes the place of the oldest of the three prefixes
    assert (preempted, names_of(scheduler.running)) == ([], ["a", "b", "c", "x"])
    scheduler.remove(x)
    runner.num_reserved = 0
    assert names_of(scheduler.admit()) == ["d", "e", "f"]
    runner.num_reserved = 1
    arrive(scheduler, a_sequence("y"))
    assert preempted == ["f", "e"]
    runner.num_reserved = 2
    assert len(admitted(*map(_background, "ab"), max_running=2, runner=runner).running) == 1  # whatever is kept
