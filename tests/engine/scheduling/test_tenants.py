"""Places, memory, queue and prompts are divided between tenants, each of which is one API key."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import KvMemory, StepPolicy
from genai_server.engine.sequence import Sequence
from genai_server.errors import QueueFull
from genai_server.messages.generation_request import GenerationRequest
from tests.engine.scheduling.scheduled import (
    IDLE_CHUNK,
    a_scheduler,
    able_runner,
    arrive,
    free_tokens,
    names_of,
    next_step,
    num_free,
    preemptions,
    produce,
)
from tests.hand_clock import HandClock

_numbers: Iterator[int] = count()


def of(name: str, num_prompt: int = 4, *, clock: HandClock | None = None, **fields: Any) -> Sequence:
    """A sequence whose tenant is the first letter of its name."""
    number = next(_numbers)
    request = GenerationRequest(name, [number, *[1] * (num_prompt - 1)], 10, 2000, tenant=name[0], **fields)
    found = Sequence(number, (0, number), request, clock or (lambda: 0.0), reuses_past=True)
    found.batched = True
    return found


def many(tenant: str, number: int, num_prompt: int = 4, **fields: Any) -> list[Sequence]:
    return [of(f"{tenant}{each}", num_prompt, **fields) for each in range(number)]


def running(scheduler: Scheduler) -> str:
    """The tenants of the running sequences, in order of admission."""
    return "".join(sequence.tenant for sequence in scheduler.running)


def with_places(*sequences: Sequence, **limits: Any) -> Scheduler:
    usual: dict[str, Any] = {"max_waiting": 300, "idle_chunk": IDLE_CHUNK, "runner": able_runner()}
    return a_scheduler(*sequences, **usual | limits)


def admitting(*sequences: Sequence, **limits: Any) -> Scheduler:
    """A scheduler with places that has admitted these sequences."""
    scheduler = with_places(*sequences, **limits)
    scheduler.admit()
    return scheduler


# places


def test_free_places_go_to_the_tenants_with_the_fewest() -> None:
    scheduler = admitting(*many("a", 9), *many("b", 9), of("c"), max_running=7)
    assert running(scheduler) == "abcabab"


def test_one_tenant_alone_has_all_places_in_order() -> None:
    scheduler = with_places(*many("a", 9), max_running=4)
    assert names_of(scheduler.admit()) == ["a0", "a1", "a2", "a3"]
    scheduler.remove(scheduler.running[0])
    assert names_of(scheduler.admit()) == ["a4"]


def test_newest_of_a_tenant_above_its_share_is_preempted_for_another_tenant() -> None:
    scheduler = admitting(*many("a", 9), max_running=4)
    preempted = preemptions(scheduler)
    scheduler.add(of("b"))
    assert names_of(scheduler.admit()) == ["b"]
    assert (preempted, running(scheduler)) == (["a3"], "aaab")
    assert names_of(scheduler.waiting)[0] == "a3"
    scheduler.remove(scheduler.running[-1])
    assert names_of(scheduler.admit()) == ["a3"]


def test_nothing_is_preempted_for_more_than_an_equal_share() -> None:
    scheduler = admitting(*many("a", 9), max_running=4)
    arrive(scheduler, *many("b", 3))
    assert running(scheduler) == "aabb"
    arrive(scheduler, of("c"))
    assert sorted(before := running(scheduler)) in (["a", "b", "b", "c"], ["a", "a", "b", "c"])
    assert (scheduler.admit(), running(scheduler)) == ([], before)


def test_no_tenant_loses_its_only_place() -> None:
    scheduler = with_places(*map(of, "abcd"), max_running=2)
    assert names_of(scheduler.admit()) == ["a", "b"]
    assert scheduler.admit() == []
    scheduler.remove(scheduler.running[0])
    assert names_of(scheduler.admit()) == ["c"]


def test_a_place_stays_free_for_a_tenant_that_has_just_left(clock: HandClock) -> None:
    scheduler = admitting(*many("a", 20), of("b"), max_running=8, policy=StepPolicy(clock=clock))
    assert running(scheduler) == "abaaaaaa"
    scheduler.remove(scheduler.running[1])
    assert scheduler.admit() == []
    assert running(scheduler) == "aaaaaaa"
    preempted = preemptions(scheduler)
    clock.wait(20.0)
    scheduler.add(of("b"))
    assert names_of(scheduler.admit()) == ["b"]
    assert preempted == []
    scheduler.remove(scheduler.running[-1])
    clock.wait(31.0)
    assert [sequence.tenant for sequence in scheduler.admit()] == ["a"]
    assert scheduler._left == {}


def test_a_device_with_few_places_leaves_none_free() -> None:
    scheduler = admitting(*many("a", 20), of("b"), max_running=4)
    scheduler.remove(scheduler.running[1])
    assert [sequence.tenant for sequence in scheduler.admit()] == ["a"]


def test_tenants_take_turns_at_a_single_place() -> None:
    scheduler = with_places(*many("a", 4), *many("b", 4), max_running=1)
    found = []
    for _ in range(6):
        (sequence,) = scheduler.admit()
        found.append(sequence.request.request_id)
        scheduler.count_tokens(sequence, 10)
        scheduler.remove(sequence)
    assert found == ["a0", "b0", "a1", "b1", "a2", "b2"]


# priority


def test_priority_orders_the_requests_of_a_tenant_only() -> None:
    scheduler = admitting(*many("a", 9, priority=-1000), of("b", priority=1000), max_running=2)
    assert running(scheduler) == "ab"
    scheduler = with_places(of("a", priority=5), of("a1", priority=1), of("b"), max_running=1)
    assert names_of(scheduler.admit()) == ["a1"]


def test_precedence_goes_before_tenants() -> None:
    scheduler = admitting(*many("a", 3), *many("b", 3, precedence=-1), max_running=3)
    assert running(scheduler) == "bbb"
    assert scheduler.admit() == []
    scheduler.remove(scheduler.running[0])
    scheduler.admit()
    assert running(scheduler) == "bba"


def test_a_low_precedence_is_raised_to_the_usual_one_by_waiting(clock: HandClock) -> None:
    low = of("b", precedence=2, clock=clock)
    scheduler = with_places(of("a", clock=clock), low, max_running=1)
    assert names_of(scheduler.admit()) == ["a"]
    clock.wait(65.0)
    scheduler.add(of("a1", clock=clock))
    scheduler.count_tokens(scheduler.running[0], 10)
    scheduler.remove(scheduler.running[0])
    assert names_of(scheduler.admit()) == ["b"]


# memory


def sharing(num_pages: int, *sequences: Sequence, **limits: Any) -> Scheduler:
    """A scheduler that has admitted sequences to this number of pages of ten tokens; they need memory for all of
    their tokens.
    """
    return admitting(*sequences, policy=StepPolicy(memory=KvMemory(10, num_pages)), **{"runner": None} | limits)


def test_memory_of_a_tenant_above_its_share_is_freed_for_another_tenant() -> None:
    scheduler = sharing(10, *many("a", 5, 10))  # two pages each
    assert running(scheduler) == "aaaaa"
    arrive(scheduler, of("b", 40))
    assert running(scheduler) == "aab"


def test_a_tenant_within_its_share_passes_what_waits_for_memory() -> None:
    scheduler = sharing(10, of("b", 20), of("a", 70))
    assert running(scheduler) == "b"
    scheduler.add(of("c", 30))
    arrive(scheduler, of("d", 10))
    # The share of each is two pages.
    assert running(scheduler) == "bd"


def test_a_sequence_that_needs_more_than_its_share_blocks_others_after_a_while(clock: HandClock) -> None:
    scheduler = sharing(10, of("b", 40, clock=clock), of("a", 70, clock=clock))
    assert running(scheduler) == "b"
    clock.wait(31.0)
    scheduler.add(of("b1", 10, clock=clock))
    assert scheduler.admit() == []
    scheduler.remove(scheduler.running[0])
    scheduler.admit()
    assert running(scheduler) == "ab"


def test_the_only_sequence_of_a_tenant_keeps_its_memory() -> None:
    scheduler = sharing(10, of("a", 80))
    scheduler.add(of("b", 20))
    assert scheduler.admit() == []


def test_tenant_with_most_memory_is_preempted_first_when_it_gets_short() -> None:
    sequences = [*many("a", 2, 400), *many("b", 2, 20)]
    for sequence in sequences:
        sequence.max_length = 2000
    scheduler = sharing(320, *sequences, runner=able_runner())
    assert running(scheduler) == "abab"
    preempted = preemptions(scheduler)
    for sequence in scheduler.running:
        sequence.tokens += [5] * 600
    scheduler.make_room()
    assert preempted == ["a1"]


# the queue


def test_a_tenant_is_accepted_beyond_the_limit_up_to_its_equal_share() -> None:
    scheduler = a_scheduler(max_running=4, max_waiting=16)
    assert [num_free(scheduler, "a"), num_free(scheduler)] == [20, 20]
    for sequence in many("a", 20):
        scheduler.add(sequence)
    assert (num_free(scheduler, "a"), num_free(scheduler, "b")) == (0, 10)
    with pytest.raises(QueueFull, match=r"^20 requests are on this device already: .* lets 16 wait$"):
        scheduler.add(of("a"))
    for sequence in many("b", 10):
        scheduler.add(sequence)
    with pytest.raises(
        QueueFull,
        match="^30 requests are on this device already, 10 of them of this key: .*; the equal share of each of 2 keys",
    ):
        scheduler.add(of("b"))
    assert num_free(scheduler, "c") == 6


def test_tokens_that_wait_have_an_equal_share_for_each_tenant() -> None:
    scheduler = a_scheduler(max_running=2, max_waiting=99, max_waiting_tokens=100)
    for sequence in many("a", 12, 10):
        scheduler.add(sequence)
    assert free_tokens(scheduler, "a") == 0
    with pytest.raises(QueueFull, match="GENAI_MAX_QUEUE_TOKENS lets 100 wait"):
        scheduler.add(of("a", 1))
    assert free_tokens(scheduler, "b") is None
    scheduler.add(of("b", 1000))  # it runs at once
    scheduler.admit()
    assert running(scheduler) == "ab"
    assert free_tokens(scheduler, "b") == 50
    scheduler.add(of("b", 50))
    with pytest.raises(QueueFull):
        scheduler.add(of("b", 1))


# prompts


def read(scheduler: Scheduler, number: int) -> list[str]:
    """The prompts that the next passes read, by name and tokens, as if a runner read them. They leave at their ends."""
    found = []
    for _ in range(number):
        step = next_step(scheduler)
        for each in step.chunks:
            each.sequence.num_read += each.num_tokens
            scheduler.count_tokens(each.sequence, each.num_tokens)
            if not each.sequence.num_unread:
                scheduler.remove(each.sequence)
        found.append(" ".join(f"{each.sequence.request.request_id}:{each.num_tokens}" for each in step.chunks))
    return found


def test_no_chunk_of_a_long_prompt_delays_the_first_token_of_another_tenant() -> None:
    scheduler = admitting(of("a0", 96), of("b0", 5), of("a1", 96), of("c0", 6), prefill_chunk=24)
    assert read(scheduler, 3) == ["b0:5 c0:6", "a0:24", "a0:24"]
    # A short prompt of the same tenant begins the pass, and its longer one stays out for the other tenant.
    scheduler = admitting(of("a0", 4), of("b0", 5), of("a1", 96), prefill_chunk=24)
    assert read(scheduler, 2) == ["a0:4 b0:5", "a1:24"]


def test_a_tenant_alone_fills_its_passes() -> None:
    scheduler = admitting(of("a0", 4), of("a1", 96), prefill_chunk=24)
    (first,) = read(scheduler, 1)
    assert first.startswith("a0:4 a1:")


def test_long_prompts_of_tenants_are_read_in_turns() -> None:
    scheduler = admitting(of("a", 96), of("b", 96))
    assert read(scheduler, 4) == ["a:24", "b:24", "a:24", "b:24"]


def test_a_short_prompt_waits_for_one_pass_of_another_tenant_at_most() -> None:
    scheduler = admitting(*many("a", 15, 1000))
    assert read(scheduler, 40) == ["a0:24"] * 40
    found = ""
    for _ in range(4):
        scheduler.add(of("b", 5))
        scheduler.admit()
        while not found.endswith("b"):
            found += read(scheduler, 1)[0][0]
        found += " "
    assert found == "b ab ab ab "


def test_waiting_does_not_put_the_prompts_of_one_tenant_before_those_of_another(clock: HandClock) -> None:
    scheduler = admitting(*many("a", 15, 1000, clock=clock))
    scheduler._step_times.passed(0, 10, 1.0)
    clock.wait(3600.0)
    read(scheduler, 1)
    arrive(scheduler, of("b", 500, clock=clock))
    assert [each[0] for each in read(scheduler, 4)] == ["b", "a", "b", "a"]


def test_fewest_tokens_left_and_priority_hold_within_a_tenant() -> None:
    scheduler = admitting(of("a", 90), of("a1", 40), of("a2", 60, priority=-1), of("b", 50))
    assert read(scheduler, 6) == ["a2:24", "b:24", "a2:24", "b:24", "a2:12", "b:2"]
    assert read(scheduler, 3) == ["a1:24", "a1:16", "a:24"]


def test_precedence_goes_before_the_turns_of_prompts() -> None:
    scheduler = admitting(of("a", 30), of("b", 60, precedence=-1))
    assert [each.split(":")[0] for each in read(scheduler, 4)] == ["b", "b", "b", "a"]


def test_accepted_drafts_count_as_tokens_that_were_served() -> None:
    a, b = of("a"), of("b")
    scheduler = admitting(a, b)
    scheduler.verified(a, 8, 6)
    assert scheduler._turn(b) < scheduler._turn(a)
    assert scheduler._turn(a)[0] - scheduler._turn(b)[0] == 6


# low priority


def low_priority(tenant: str, number: int, num_prompt: int = 4) -> list[Sequence]:
    return many(tenant, number, num_prompt, low_priority=True)


def test_batches_of_tenants_take_turns_below_everything_else() -> None:
    scheduler = admitting(*low_priority("a", 9), max_running=4)
    arrive(scheduler, *low_priority("b", 9))
    assert running(scheduler) == "aabb"
    arrive(scheduler, of("c"))
    assert sorted(running(scheduler)) in (["a", "a", "b", "c"], ["a", "b", "b", "c"])
    assert [each.split(":")[0] for each in read(scheduler, 1)] == ["c"]


def test_prompts_of_batches_are_read_in_turns() -> None:
    scheduler = admitting(*low_priority("a", 2, 200), *low_priority("b", 1, 200))
    assert [each[0] for each in read(scheduler, 4)] == ["a", "b", "a", "b"]


def test_interactive_tokens_of_a_tenant_do_not_count_in_its_batches() -> None:
    a, b = (low_priority(tenant, 1, 200)[0] for tenant in "ab")
    scheduler = admitting(a, b)
    other = of("a")
    scheduler.add(other)
    scheduler.count_tokens(other, 1000)
    scheduler.remove(other)
    assert [each[0] for each in read(scheduler, 2)] == ["a", "b"]


def test_few_sequences_of_batches_that_decode_are_chosen_in_turns() -> None:
    sequences = [*low_priority("a", 3), *low_priority("b", 1)]
    scheduler = admitting(*sequences)
    for sequence in sequences:
        produce(sequence)
    for number in range(1, 5):
        scheduler._step_times.passed(number, number, 0.04 * number)
    found = []
    for _ in range(4):
        step = next_step(scheduler)
        assert len(step.chunks) == 2
        found += names_of(step.sequences)
        for each in step.chunks:
            scheduler.count_tokens(each.sequence, 1)
    assert "b0" in found
