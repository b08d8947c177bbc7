"""The next pass: one token for all decoding sequences, and one chunk of the prompt with the fewest unread tokens."""

from typing import Any

import pytest

from genai_server.engine.runners.base import Abilities, Runner
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.drafts import Drafter
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import KvMemory, Read, Step, StepPolicy
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import QueueFull
from genai_server.messages.generation_request import GenerationRequest
from genai_server.messages.protocol import Capacity
from tests.hand_clock import HandClock

CHUNK = 8
IDLE_CHUNK = 24


def _sequence(
    name: str, num_prompt: int = 1, *, decoding: bool = False, batched: bool = False, **fields: Any
) -> Sequence:
    sequence = Sequence(0, (0, 0), GenerationRequest(name, [1] * num_prompt, 10, 2000, **fields), lambda: 0.0)
    sequence.batched = batched
    if decoding:
        _produce(sequence)
    return sequence


def _produce(sequence: Sequence) -> None:
    """Read the rest and append a token."""
    sequence.num_read = len(sequence.tokens)
    sequence.append(5)


def _names(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]


def _next(scheduler: Scheduler) -> Step:
    """The next step; fails without one."""
    step = scheduler.next_step()
    assert step is not None
    return step


def _passes(scheduler: Scheduler, count: int) -> str:
    """The next passes by one-letter names, with batches in brackets and "-" for no pass. Nothing is actually read."""
    found = ""
    for _ in range(count):
        step = scheduler.next_step()
        names = "-" if step is None else "".join(_names(step.sequences))
        found += names if len(names) == 1 else f"({names})"
    return found


def _scheduler(*sequences: Sequence, runner: Runner | None = None, **limits: Any) -> Scheduler:
    """A scheduler with these sequences in its queue; a limit that is not given does not matter."""
    usual = {"max_running": 16, "max_waiting": 16, "prefill_chunk": CHUNK}
    scheduler = Scheduler(runner or ScriptedRunner(), **usual | limits)
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler


def _running(*sequences: Sequence, **limits: Any) -> Scheduler:
    """A scheduler that has admitted these sequences."""
    scheduler = _scheduler(*sequences, **{"idle_chunk": IDLE_CHUNK} | limits)
    scheduler.admit()
    return scheduler


def _arrive(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)
        scheduler.admit()


def _chunks(scheduler: Scheduler, sequence: Sequence) -> list[int]:
    """The prefill passes of this sequence, as numbers of tokens."""
    found = []
    while not sequence.is_decoding and sequence.num_unread:
        step = _next(scheduler)
        if step.sequences == [sequence]:
            found.append(step.num_tokens)
            sequence.num_read += step.num_tokens
    return found


# queued and running


def test_sequences_are_admitted_in_order_of_arrival() -> None:
    scheduler = _scheduler(*map(_sequence, "abc"), max_running=2)
    assert _names(scheduler.admit()) == ["a", "b"]
    assert (_names(scheduler.running), _names(list(scheduler.waiting))) == (["a", "b"], ["c"])
    assert scheduler.admit() == []


def test_removed_sequence_is_replaced_by_the_next() -> None:
    a, b, c = map(_sequence, "abc")
    scheduler = _running(a, b, c, max_running=1)
    scheduler.remove(b)
    scheduler.remove(a)
    assert scheduler.admit() == [c]


@pytest.mark.parametrize("admitted_first", [True, False])
def test_queue_accepts_max_running_plus_max_waiting(admitted_first: bool) -> None:
    scheduler = _scheduler(max_running=2, max_waiting=1)
    for name in "abc":
        scheduler.add(_sequence(name))
        if admitted_first:
            scheduler.admit()
    with pytest.raises(
        QueueFull, match=r"3 requests .* GENAI_MAX_BATCH_SIZE lets 2 run and GENAI_MAX_QUEUE lets 1 wait"
    ):
        scheduler.add(_sequence("d"))


def test_a_queue_of_none_still_lets_requests_run() -> None:
    a = _sequence("a")
    scheduler = _scheduler(a, max_running=1, max_waiting=0)
    with pytest.raises(QueueFull):
        _arrive(scheduler, _sequence("b"))
    scheduler.remove(a)
    scheduler.add(_sequence("b"))
    assert _names(scheduler.admit()) == ["b"]


def test_lowest_priority_number_is_admitted_first() -> None:
    priorities = zip("abcde", (0, 5, 0, -1, 5), strict=True)
    scheduler = _scheduler(*(_sequence(name, priority=priority) for name, priority in priorities), max_running=3)
    assert _names(scheduler.waiting) == ["d", "a", "c", "b", "e"]
    assert _names(scheduler.admit()) == ["d", "a", "c"]


def _asking(prompt: list[int], *, reuses_past: bool = True, request_id: str = "r", **fields: Any) -> Sequence:
    request = GenerationRequest(request_id, prompt, 10, 2000, **fields)
    return Sequence(0, (0, 0), request, lambda: 0.0, reuses_past=reuses_past)


def test_repeated_prompt_waits_for_the_one_being_read() -> None:
    first, same, other = _asking([1, 2, 3]), _asking([1, 2, 3]), _asking([1, 2, 4])
    scheduler = _scheduler(first, same, other)
    assert scheduler.admit() == [first, other]
    assert scheduler.admit() == []
    _produce(first)
    assert scheduler.admit() == [same]


def test_repeated_prompt_starts_when_the_first_is_removed() -> None:
    first, second, third = (_asking([1, 2, 3]) for _ in range(3))
    scheduler = _scheduler(first, second, third)
    assert scheduler.admit() == [first]
    scheduler.remove(first)
    assert scheduler.admit() == [second]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (_asking([1, 2]), _asking([1, 2], reuses_past=False)),
        (_asking([1, 2], reuses_past=False), _asking([1, 2])),
        (_asking([1, 2], cache_salt="a"), _asking([1, 2], cache_salt="b")),
        (_asking([1, 2]), _asking([1, 2], cache_salt="b")),
    ],
    ids=["one that reads it anew", "one whose past is not kept", "two salts", "a salt and none"],
)
def test_prompt_does_not_wait_for_an_unusable_one(first: Sequence, second: Sequence) -> None:
    assert _scheduler(first, second).admit() == [first, second]


def test_urgent_sequence_waits_for_no_prompt() -> None:
    first, urgent = _asking([1, 2]), _asking([1, 2], priority=-1)
    scheduler = _running(first)
    scheduler.add(urgent)
    assert scheduler.admit() == [urgent]


def test_a_refused_sequence_is_not_kept() -> None:
    a = _sequence("a")
    scheduler = _scheduler(a, max_running=1, max_waiting=0)
    with pytest.raises(QueueFull):
        scheduler.add(_sequence("b"))
    scheduler.remove(a)
    assert scheduler.is_idle


def test_there_is_something_to_do_while_anything_waits_or_runs() -> None:
    scheduler, a = _scheduler(), _sequence("a")
    idle = []
    for action in (list, lambda: scheduler.add(a), scheduler.admit, lambda: scheduler.remove(a)):
        action()
        idle.append(scheduler.is_idle)
    assert idle == [True, False, False, True]


# queued prompt tokens


def _bounded(**limits: Any) -> Scheduler:
    """A scheduler with a limit of the tokens that wait."""
    return _scheduler(**{"max_running": 1, "max_waiting": 9, "max_waiting_tokens": 100} | limits)


def test_queued_prompts_have_a_token_limit_together() -> None:
    scheduler = _bounded()
    _arrive(scheduler, *(_sequence(*pair) for pair in (("a", 500), ("b", 60), ("c", 40))))
    with pytest.raises(
        QueueFull, match=r"would have 101 tokens with this one's 1: GENAI_MAX_QUEUE_TOKENS lets 100 wait"
    ):
        scheduler.add(_sequence("d", num_prompt=1))
    assert _names(scheduler.waiting) == ["b", "c"]


def test_a_prompt_of_any_length_is_taken_if_it_can_run_at_once() -> None:
    scheduler = _bounded(max_running=2)
    for name in "ab":  # both are admitted in the next step
        scheduler.add(_sequence(name, num_prompt=500))
    assert _names(scheduler.admit()) == ["a", "b"]


def _sharing(*sequences: Sequence, num_pages: int = 10, **limits: Any) -> Scheduler:
    """A scheduler whose slots share this number of pages of ten tokens."""
    return _scheduler(*sequences, policy=StepPolicy(memory=KvMemory(10, num_pages)), **limits)


def test_running_sequences_fit_the_memory_at_full_length() -> None:
    # Three pages each: 20 tokens of prompt, 10 of answer.
    scheduler = _sharing(*(_sequence(name, 20) for name in "abcde"))
    assert _names(scheduler.admit()) == ["a", "b", "c"]
    scheduler.remove(scheduler.running[1])
    assert _names(scheduler.admit()) == ["d"]


def _growing(*sequences: Sequence, num_pages: int, **limits: Any) -> Scheduler:
    """The same with a runner whose sequences take pages as their tokens come."""
    return _sharing(*sequences, num_pages=num_pages, runner=_able(), **limits)


def _long(name: str, number: int = 0, num_prompt: int = 20, **fields: Any) -> Sequence:
    """A sequence that may have 2000 tokens."""
    request = GenerationRequest(name, [1] * num_prompt, 2000 - num_prompt, 2000, **fields)
    return Sequence(number, (0, number), request, lambda: 0.0)


def test_answers_without_a_limit_run_together_by_their_expected_lengths() -> None:
    scheduler = _growing(*(_long(name) for name in "abcdefgh"), num_pages=200)
    # 20 tokens of prompt, and 512 expected before any answer has ended: 53 pages.
    assert _names(scheduler.admit()) == ["a", "b", "c"]
    for _ in range(50):
        scheduler._step_times.answered(20)
    # At least 256 tokens more are kept for each: 27 pages.
    assert _names(scheduler.admit()) == ["d", "e", "f", "g"]
    for _ in range(50):
        scheduler._step_times.answered(1000)
    scheduler.remove(scheduler.running[0])
    assert scheduler.admit() == []


def test_last_sequences_are_paused_when_the_memory_gets_short() -> None:
    sequences = [_long(name, number) for number, name in enumerate("abc")]
    scheduler = _growing(*sequences, num_pages=200)
    paused: list[Sequence] = []
    scheduler.on_pause = paused.append
    assert len(scheduler.admit()) == 3
    for sequence in sequences:
        sequence.tokens += [5] * 560
        sequence.num_read = 580
    scheduler.make_room()
    assert paused == []  # 64 pages each, with 64 tokens more
    sequences[0].tokens += [5] * 100
    scheduler.make_room()
    assert _names(paused) == _names(scheduler.waiting) == ["c"]
    assert sequences[2].num_read == 0
    assert scheduler.admit() == []
    scheduler.remove(sequences[1])
    assert _names(scheduler.admit()) == ["c"]


def test_a_paused_sequence_comes_before_later_ones_and_after_urgent_ones() -> None:
    first, second = _long("a", 0), _long("b", 1, priority=-1)
    scheduler = _growing(first, second, num_pages=120)
    assert len(scheduler.admit()) == 2
    second.tokens += [5] * 1100
    scheduler.make_room()
    assert _names(scheduler.running) == ["b"]
    scheduler.add(_long("c", 2))
    scheduler.remove(second)
    assert _names(scheduler.admit())[0] == "a"


def test_a_sequence_on_a_generator_has_memory_for_its_full_length() -> None:
    alone, other = _long("a", 0, num_prompt=1000), _long("b", 1)
    scheduler = _growing(alone, other, num_pages=205)
    assert len(scheduler.admit()) == 2
    alone.profile.switch("prefix", 0)
    scheduler.make_room()
    assert _names(scheduler.running) == ["a"]
    assert scheduler.admit() == []


def test_a_sequence_alone_is_never_paused() -> None:
    alone = _long("a")
    scheduler = _growing(alone, num_pages=200)
    scheduler.admit()
    alone.tokens += [5] * 1979
    scheduler.make_room()
    assert scheduler.running == [alone]


def test_sequence_without_memory_is_not_overtaken() -> None:
    scheduler = _sharing(_sequence("a", 20), _sequence("b", 80), _sequence("c"))
    assert _names(scheduler.admit()) == ["a"]
    scheduler.remove(scheduler.running[0])
    assert _names(scheduler.admit()) == ["b", "c"]


def test_prompts_that_wait_for_memory_count_as_waiting_tokens() -> None:
    scheduler = _sharing(_sequence("a", 60), max_waiting_tokens=100)
    assert scheduler.free_tokens() is None
    scheduler.add(_sequence("b", 60))
    assert scheduler.free_tokens() == 40
    with pytest.raises(QueueFull, match="would have 101 tokens with this one's 41"):
        scheduler.add(_sequence("c", 41))


def _without_grammar(name: str, num_prompt: int = 1) -> Sequence:
    sequence = _sequence(name, num_prompt)
    sequence.state = SequenceState.PREPARING
    return sequence


def test_sequences_waiting_for_grammars_count_in_the_queue() -> None:
    scheduler = _bounded()
    _arrive(scheduler, _sequence("a"))
    scheduler.add(_without_grammar("b", num_prompt=60))
    assert (scheduler.num_free(), scheduler.free_tokens()) == (8, 40)
    with pytest.raises(QueueFull):
        scheduler.add(_sequence("c", num_prompt=41))
    scheduler.add(_sequence("c", num_prompt=40))


def test_sequence_waiting_for_its_grammar_keeps_its_place() -> None:
    a, b, c = _without_grammar("a"), _sequence("b"), _sequence("c")
    scheduler = _scheduler(a, max_running=1)
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
        _arrive(scheduler, _sequence(name, 30))
        found.append((scheduler.num_free(), scheduler.free_tokens()))
    assert found == [(4, None), (3, None), (2, 100), (1, 70), (0, 40)]


def test_queue_without_a_token_limit_accepts_any_number() -> None:
    scheduler = _bounded(max_waiting_tokens=0)
    for name in "abc":
        scheduler.add(_sequence(name, num_prompt=10**6))
    assert scheduler.free_tokens() is None


def test_refusal_estimates_when_the_queue_has_capacity() -> None:
    scheduler = _bounded(max_waiting=1)
    running = _sequence("a", num_prompt=4, batched=True)
    _arrive(scheduler, running)
    for seconds in (8.0, 1.0, 1.0):  # 2 s per prompt token
        scheduler.observe(_next(scheduler), seconds)
        _produce(running)
    scheduler.add(_sequence("b", num_prompt=100))
    with pytest.raises(QueueFull) as full:
        scheduler.add(_sequence("c"))
    # 10 tokens were allowed, of which 7 are left
    assert full.value.retry_after == 7
    scheduler = _bounded()
    scheduler.add(_sequence("a"))
    with pytest.raises(QueueFull) as full:
        scheduler.add(_sequence("b", num_prompt=101))
    assert full.value.retry_after == 1  # nothing was measured


# passes of single sequences


def test_idle_scheduler_has_no_pass() -> None:
    scheduler = _scheduler()
    assert scheduler.next_step() is None
    scheduler.add(_sequence("a"))
    assert scheduler.next_step() is None


def test_decoding_sequences_take_turns_in_order_of_arrival() -> None:
    assert _passes(_running(*(_sequence(name, decoding=True) for name in "abc")), 7) == "abcabca"


def test_a_prompt_has_all_passes_when_it_is_alone() -> None:
    assert _passes(_running(_sequence("p")), 3) == "ppp"


def test_oldest_prompt_is_read_to_its_end_first() -> None:
    first, second = _sequence("p"), _sequence("q")
    scheduler = _running(first, second)
    assert _passes(scheduler, 3) == "ppp"
    _produce(first)
    assert _passes(scheduler, 4) == "pqpq"


def test_prompt_of_the_lowest_priority_number_is_read_first() -> None:
    low, high = _sequence("p", priority=3), _sequence("q", priority=-1)
    scheduler = _running(low)
    assert _passes(scheduler, 2) == "pp"
    _arrive(scheduler, high)
    assert _passes(scheduler, 2) == "qq"
    _produce(high)
    assert _passes(scheduler, 4) == "qpqp"


def test_stream_pauses_for_one_chunk_whatever_waits() -> None:
    # The prompts came first, but every round has only one chunk.
    scheduler = _running(*(_sequence(name) for name in "pqr"), *(_sequence(name, decoding=True) for name in "ab"))
    assert _passes(scheduler, 9) == "abpabpabp"


def test_prompt_that_arrives_mid_round_is_read_at_its_end() -> None:
    scheduler = _running(*(_sequence(name, decoding=True) for name in "ab"))
    assert _passes(scheduler, 1) == "a"
    _arrive(scheduler, _sequence("p"))
    assert _passes(scheduler, 4) == "bpab"


def test_finished_prompt_decodes_in_the_next_round() -> None:
    prompt = _sequence("p")
    scheduler = _running(_sequence("a", decoding=True), prompt)
    assert _passes(scheduler, 2) == "ap"
    _produce(prompt)
    assert _passes(scheduler, 4) == "apap"


def test_sequence_removed_mid_round_has_no_further_pass() -> None:
    a, b, c = (_sequence(name, decoding=True) for name in "abc")
    scheduler = _running(a, b, c)
    assert _passes(scheduler, 1) == "a"
    scheduler.remove(b)
    assert _passes(scheduler, 4) == "caca"


def test_emptied_round_has_no_further_pass() -> None:
    a, b = (_sequence(name, decoding=True) for name in "ab")
    scheduler = _running(a, b)
    assert _passes(scheduler, 1) == "a"
    scheduler.remove(a)
    scheduler.remove(b)
    assert _passes(scheduler, 1) == "-"
    _arrive(scheduler, _sequence("c"))
    assert _passes(scheduler, 2) == "cc"


# batches


def test_batched_sequences_share_a_pass_and_others_run_alone() -> None:
    scheduler = _running(
        *(_sequence(name, decoding=True, batched=name in "acd") for name in "abcde"), _sequence("p", batched=True)
    )
    assert _passes(scheduler, 8) == "(acd)bep(acd)bep"


def test_prompt_joins_the_batch_after_its_first_token() -> None:
    prompt = _sequence("p", batched=True, num_prompt=3)
    scheduler = _running(_sequence("a", decoding=True, batched=True), prompt)
    assert _passes(scheduler, 4) == "apap"
    _produce(prompt)
    assert _passes(scheduler, 2) == "(ap)(ap)"


def test_a_pass_that_decodes_reads_one_token_of_each() -> None:
    step = _next(_running(*(_sequence(name, decoding=True, batched=True) for name in "ab")))
    assert [read.num_tokens for read in step.reads] == [1, 1]
    assert step.decodes


def test_removed_sequence_is_not_in_the_next_batch() -> None:
    a, b, c = (_sequence(name, decoding=True, batched=True) for name in "abc")
    scheduler = _running(a, b, c)
    assert _passes(scheduler, 1) == "(abc)"
    scheduler.remove(b)
    assert _passes(scheduler, 1) == "(ac)"


def test_sequence_moved_to_the_batch_has_no_second_pass_a_round() -> None:
    a, b, c = (_sequence(name, decoding=True) for name in "abc")
    scheduler = _running(a, b, c)
    assert _passes(scheduler, 1) == "a"
    b.batched = True
    assert _passes(scheduler, 3) == "cba"


# chunks


def test_chunk_is_longer_without_decoding_sequences() -> None:
    prompt = _sequence("p", batched=True, num_prompt=50)
    assert _chunks(_running(prompt), prompt) == [24, 24, 2]
    prompt = _sequence("p", batched=True, num_prompt=50)
    assert _chunks(_running(prompt, _sequence("a", decoding=True, batched=True)), prompt) == [8, 8, 8, 8, 8, 8, 2]


def test_chunk_next_to_a_stream_is_limited_by_measured_time() -> None:
    prompt = _sequence("p", batched=True, num_prompt=500)
    scheduler = _running(_sequence("a", decoding=True, batched=True), prompt, prefill_chunk=100, idle_chunk=0)
    found = []
    for decoding, per_token in [(0.01, 0.001), (0.01, 0.001), (0.03, 0.001), (0.0001, 0.001), (10.0, 0.001)]:
        step = _next(scheduler)
        assert step.decodes
        scheduler.observe(step, decoding)
        step = _next(scheduler)
        assert not step.decodes
        scheduler.observe(step, step.num_tokens * per_token)
        found.append(step.num_tokens)
    # The first is small, because nothing is known of prompts; then 3 times the decoding time, within the limits.
    assert found == [16, 24, 88, 16, 96]


def test_other_prompts_that_wait_do_not_shorten_a_chunk() -> None:
    first, second = (_sequence(name, batched=True, num_prompt=40) for name in "pq")
    assert _chunks(_running(first, second), first) == [24, 16]


def test_pass_that_cannot_be_interrupted_is_always_short() -> None:
    prompt = _sequence("p", num_prompt=20)
    assert _chunks(_running(prompt), prompt) == [8, 8, 4]


@pytest.mark.parametrize("num_prompt", range(1, 40))
@pytest.mark.parametrize("batched", [True, False])
def test_prompt_is_read_once_without_chunks_of_one_token(num_prompt: int, batched: bool) -> None:
    prompt = _sequence("p", batched=batched, num_prompt=num_prompt)
    chunks = _chunks(_running(prompt), prompt)
    assert sum(chunks) == num_prompt
    assert min(chunks) > 1 or num_prompt == 1


@pytest.mark.parametrize("num_prompt", [17, 33, 65, 66, 97, 129, 257, 258, 385])
@pytest.mark.parametrize("most", [32, 33, 64, 256])
def test_no_chunk_has_one_token_beyond_the_attentions_blocks(num_prompt: int, most: int) -> None:
    prompt = _sequence("p", num_prompt)
    chunks = _chunks(_running(prompt, prefill_chunk=most, idle_chunk=0), prompt)
    assert sum(chunks) == num_prompt
    assert not [chunk for chunk in chunks if chunk % 16 == 1]
    assert all(most - 8 < chunk <= most for chunk in chunks[:-2])


@pytest.mark.parametrize(("most", "group"), [(2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (21, 8), (100, 8)])
def test_chunks_except_the_last_are_complete_row_groups(most: int, group: int) -> None:
    for num_prompt in range(1, 140):
        prompt = _sequence("p", num_prompt)
        *chunks, last = _chunks(_running(prompt, prefill_chunk=most, idle_chunk=0), prompt)
        assert not [chunk for chunk in chunks if chunk % group or chunk > most]
        assert last <= most + 1


def test_reading_begins_behind_what_came_from_the_cache() -> None:
    prompt = _sequence("p", batched=True, num_prompt=30)
    prompt.num_read = 21
    assert _chunks(_running(prompt), prompt) == [9]


def _read_anew(*, exact: bool) -> list[int]:
    sequence = _sequence("p", num_prompt=10, exact=exact)
    for _ in range(7):
        sequence.append(5)
    return _chunks(_running(sequence), sequence)


def test_produced_tokens_are_recomputed_in_chunks() -> None:
    assert sum(_read_anew(exact=False)) in (16, 17)
    assert len(_read_anew(exact=False)) < 4


def test_exact_sequence_recomputes_its_answer_token_by_token() -> None:
    # The last of the seven tokens is read by a decoding pass, as usual.
    assert _read_anew(exact=True) == [8, 2, 1, 1, 1, 1, 1, 1]


# mixed steps


def _able() -> ScriptedRunner:
    """A runner whose passes may mix and have drafts."""
    runner = ScriptedRunner()
    runner.abilities = Abilities("able", 16, mixes=True, drafts=True)
    return runner


def _mixing(*sequences: Sequence, itl_target: float = 0.0) -> Scheduler:
    policy = StepPolicy(itl_target=itl_target)
    return _running(*sequences, runner=_able(), prefill_chunk=64, idle_chunk=128, policy=policy)


def _batched(name: str, **how: Any) -> Sequence:
    return _sequence(name, batched=True, **how)


def test_mixed_step_decodes_and_reads_a_chunk() -> None:
    scheduler = _mixing(_batched("a", decoding=True), _batched("b", decoding=True), _batched("p", num_prompt=50))
    step = _next(scheduler)
    assert [(read.sequence.request.request_id, read.num_tokens, read.decodes) for read in step.reads] == [
        ("a", 1, True),
        ("b", 1, True),
        ("p", 16, False),
    ]
    assert (step.num_decoding, step.decodes, step.num_tokens) == (2, False, 18)
    assert _passes(scheduler, 2) == "(abp)(abp)"


def test_unbatched_sequences_have_their_own_passes() -> None:
    scheduler = _mixing(_batched("a", decoding=True), _sequence("g", decoding=True), _batched("p", num_prompt=50))
    assert _passes(scheduler, 4) == "(ap)g(ap)g"
    scheduler = _mixing(_batched("a", decoding=True), _sequence("q", num_prompt=50))
    assert _passes(scheduler, 4) == "aqaq"


def test_exact_and_scored_sequences_share_passes() -> None:
    for decoding, prompt in (({"exact": True}, {}), ({}, {"exact": True}), ({}, {"prompt_logprobs": True})):
        scheduler = _mixing(_batched("a", decoding=True, **decoding), _batched("p", num_prompt=50, **prompt))
        assert _passes(scheduler, 4) == "(ap)(ap)(ap)(ap)"


def _read(scheduler: Scheduler) -> list[tuple[str, int]]:
    """The names and numbers of tokens of the next pass."""
    return [(read.sequence.request.request_id, read.num_tokens) for read in _next(scheduler).reads]


def test_short_prompts_share_a_pass_of_a_usual_chunk() -> None:
    prompts = [_batched(name, num_prompt=20) for name in "pqrs"]
    assert _read(_mixing(*prompts)) == [("p", 20), ("q", 20), ("r", 20)]


def test_part_of_a_further_prompt_fills_the_pass() -> None:
    assert _read(_mixing(_batched("p", num_prompt=20), _batched("q", num_prompt=90))) == [("p", 20), ("q", 40)]


def test_prompt_beside_a_large_chunk_waits() -> None:
    assert _read(_mixing(_batched("p", num_prompt=100), _batched("q", num_prompt=120))) == [("p", 100)]


def test_prompt_that_begins_like_one_being_read_waits() -> None:
    prompts = []
    for name, num_common in (("p", 25), ("q", 20), ("r", 10)):
        prompts.append(_asking([1] * num_common + [9] * (25 - num_common), request_id=name))
        prompts[-1].batched = True
    assert _read(_mixing(*prompts)) == [("p", 25), ("r", 25)]


def test_a_prompt_alone_is_read_in_large_chunks() -> None:
    prompt = _batched("p", num_prompt=300)
    assert _chunks(_mixing(prompt), prompt) == [128, 128, 44]


def _observed(scheduler: Scheduler, decoding: float, per_token: float) -> list[int]:
    """The chunk sizes of mixed steps if a pass takes a number of seconds, plus a number of seconds for each token of a
    chunk.
    """
    found = []
    for _ in range(4):
        step = _next(scheduler)
        num_read = step.num_tokens - step.num_decoding
        scheduler.observe(step, decoding + per_token * num_read)
        found.append(num_read)
    return found


@pytest.mark.parametrize(
    ("num_prompts", "itl_target", "chunks"),
    [
        (1, 0.0, [16, 24, 24, 24]),  # four times what decoding takes
        (2, 0.0, [16, 56, 56, 56]),  # more while more prompts wait
        (3, 0.06, [16, 48, 48, 48]),
        (1, 0.005, [16, 16, 16, 16]),  # the smallest chunk, for the target cannot be kept
    ],
)
def test_step_has_a_multiple_of_its_decoding_or_the_target(
    num_prompts: int, itl_target: float, chunks: list[int]
) -> None:
    scheduler = _mixing(_batched("a", decoding=True), itl_target=itl_target)
    step = _next(scheduler)
    assert step.decodes
    scheduler.observe(step, 0.01)
    _arrive(scheduler, *(_batched(name, num_prompt=500) for name in "pqr"[:num_prompts]))
    assert _observed(scheduler, 0.01, 0.001) == chunks


# choice of the prompt


def _prompt(name: str, num_prompt: int, clock: HandClock, *, id: int = 0, priority: int = 0) -> Sequence:
    request = GenerationRequest(name, [1] * num_prompt, 10, 4000, priority=priority)
    sequence = Sequence(id, (0, id), request, clock)
    sequence.batched = True
    return sequence


def test_the_prompt_with_the_fewest_tokens_left_is_read_first(clock: HandClock) -> None:
    long, short = _prompt("l", 100, clock, id=1), _prompt("s", 30, clock, id=2)
    scheduler = _running(long, short)
    assert _passes(scheduler, 1) == "s"
    long.num_read = 80
    assert _passes(scheduler, 1) == "l"
    assert _passes(_running(_prompt("b", 50, clock, id=2), _prompt("a", 50, clock, id=1)), 1) == "a"


def test_long_prompt_is_not_starved_by_short_ones(clock: HandClock) -> None:
    long = _prompt("l", 1000, clock, id=1)
    scheduler = _running(long)
    step = _next(scheduler)
    scheduler.observe(step, 0.001 * step.num_tokens)  # a thousand tokens a second
    _arrive(scheduler, _prompt("s", 10, clock, id=2))
    assert _passes(scheduler, 1) == "s"
    clock.wait(3.0)
    _arrive(scheduler, _prompt("t", 10, clock, id=3))
    scheduler.remove(next(s for s in scheduler.running if s.id == 2))
    assert _passes(scheduler, 1) == "l"


def test_priority_goes_before_length_and_waiting_raises_it(clock: HandClock) -> None:
    late, urgent = _prompt("l", 10, clock, id=1, priority=1), _prompt("u", 500, clock, id=2)
    assert _passes(_running(late, urgent), 1) == "u"
    clock.wait(31.0)
    scheduler = _running(_prompt("u", 500, clock, id=3))
    scheduler.running.append(late)
    assert _passes(scheduler, 1) == "l"


def test_long_waiting_request_precedes_an_urgent_one(clock: HandClock) -> None:
    scheduler = _scheduler(_prompt("l", 10, clock, id=1, priority=1), max_running=1)
    clock.wait(61.0)
    scheduler.add(_prompt("u", 10, clock, id=2))
    assert _names(scheduler.admit()) == ["l"]


def test_prefix_lookup_precedes_the_first_chunk_only(clock: HandClock) -> None:
    prompt, asked = _prompt("p", 100, clock), []

    def find(sequence: Sequence) -> None:
        asked.append(sequence)
        sequence.num_read = sequence.num_cached = 90

    scheduler = _running(prompt)
    scheduler.before_first_chunk = find
    assert _next(scheduler).num_tokens == 10
    prompt.num_read = 95
    scheduler.next_step()
    assert asked == [prompt]


# drafts


def _speculating(*sequences: Sequence) -> Scheduler:
    """A scheduler that knows that a single token takes a second; further tokens are assumed to cost little."""
    scheduler = _running(
        *sequences,
        runner=_able(),
        max_running=len(sequences),
        prefill_chunk=64,
        idle_chunk=0,
        policy=StepPolicy(speculates=True),
    )
    scheduler.observe(Step([Read.next(_batched("s", decoding=True))]), 1.0)
    return scheduler


def _repeating(name: str, **how: Any) -> Sequence:
    """A decoding sequence whose prompt repeats one token."""
    sequence = _batched(name, num_prompt=50, **how)
    sequence.num_read = 50
    sequence.append(1)
    return sequence


def _drafted(scheduler: Scheduler) -> list[int]:
    step = _next(scheduler)
    assert all(read.num_tokens == 1 + len(read.draft) for read in step.reads)
    return [len(read.draft) for read in step.reads]


def test_a_step_of_a_lone_sequence_reads_a_draft() -> None:
    step = _next(_speculating(_repeating("a")))
    (read,) = step.reads
    assert len(read.draft) > 0
    assert set(read.draft) == {1}
    assert (step.decodes, step.num_tokens) == (True, 1 + len(read.draft))


def test_no_draft_is_longer_than_what_is_left_of_the_answer() -> None:
    sequence = _repeating("a")  # it may have 10 tokens
    scheduler = _speculating(sequence)
    for left in range(9, 0, -1):
        assert sequence.num_left == left
        assert _drafted(scheduler)[0] <= left - 1
        sequence.num_read += 1
        sequence.append(1)


def test_sequences_beside_others_have_drafts() -> None:
    scheduler = _speculating(_repeating("a"), _repeating("b"))
    assert _drafted(scheduler) == [0, 0]  # no pass of two tokens has been measured
    scheduler.observe(Step([Read.next(_batched(name, decoding=True)) for name in "st"]), 1.0)
    assert min(_drafted(scheduler)) > 0


def test_large_batch_has_no_drafts() -> None:
    number = 70
    scheduler = _speculating(*(_repeating(f"{index}") for index in range(number)))
    scheduler.observe(Step([Read.next(_batched("s", decoding=True)) for _ in range(number)]), 1.0)
    assert _drafted(scheduler) == [0] * number


def test_step_that_reads_a_prompt_has_no_drafts() -> None:
    step = _next(_speculating(_repeating("a"), _batched("p", num_prompt=50)))
    assert [len(read.draft) for read in step.reads] == [0, 0]


def test_exact_and_unbatched_sequences_have_no_drafts() -> None:
    assert _drafted(_speculating(_repeating("a", exact=True))) == [0]
    for runner in ({"batched": False}, {"by_library": True}):
        sequence = _repeating("a")
        for name, value in runner.items():
            setattr(sequence, name, value)
        assert _drafted(_speculating(sequence)) == [0]


def test_failing_drafter_loses_only_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def broken(*args: object) -> list[int]:
        tried.append(args)
        raise ZeroDivisionError

    monkeypatch.setattr(Drafter, "draft", broken)
    assert _drafted(_speculating(_repeating("a"))) == [0]
    assert len(tried) == 1


def test_drafts_end_while_their_passes_take_too_long() -> None:
    sequence = _repeating("a")
    scheduler = _speculating(sequence)
    for _ in range(20):
        step = _next(scheduler)
        if not step.reads[0].draft:
            break
        scheduler.observe(step, 30.0)
        sequence.verified(len(step.reads[0].draft), 0)
    assert _drafted(scheduler) == [0]
