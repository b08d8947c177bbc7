"""The next pass: one token for all decoding sequences, and one chunk of the prompt with the fewest unread tokens."""

from dataclasses import replace
from typing import Any

import pytest

from genai_server.engine.scheduling.drafts import AnswerMemory, TextDrafts
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step, StepPolicy
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.messages.generation_request import GenerationRequest, Sampling
from tests.engine.scheduling.scheduled import (
    a_scheduler,
    a_sequence,
    able_runner,
    admitted,
    arrive,
    asking,
    chunks_of,
    names_of,
    next_step,
    passes,
    produce,
)
from tests.hand_clock import HandClock

# passes of single sequences


def test_idle_scheduler_has_no_pass() -> None:
    scheduler = a_scheduler()
    assert scheduler.next_step() is None
    scheduler.add(a_sequence("a"))
    assert scheduler.next_step() is None


def test_decoding_sequences_take_turns_in_order_of_arrival() -> None:
    assert passes(admitted(*(a_sequence(name, decoding=True) for name in "abc")), 7) == "abcabca"


def test_oldest_prompt_is_read_to_its_end_first() -> None:
    first, second = a_sequence("p"), a_sequence("q")
    scheduler = admitted(first, second)
    assert passes(scheduler, 3) == "ppp"
    produce(first)
    assert passes(scheduler, 4) == "pqpq"


def test_stream_pauses_for_one_chunk_whatever_waits() -> None:
    # The prompts came first, but every round has only one chunk.
    scheduler = admitted(*(a_sequence(name) for name in "pqr"), *(a_sequence(name, decoding=True) for name in "ab"))
    assert passes(scheduler, 9) == "abpabpabp"


def test_prompt_that_arrives_mid_round_is_read_at_its_end() -> None:
    scheduler = admitted(*(a_sequence(name, decoding=True) for name in "ab"))
    assert passes(scheduler, 1) == "a"
    arrive(scheduler, a_sequence("p"))
    assert passes(scheduler, 4) == "bpab"


def test_sequence_removed_mid_round_has_no_further_pass() -> None:
    a, b, c = (a_sequence(name, decoding=True) for name in "abc")
    scheduler = admitted(a, b, c)
    assert passes(scheduler, 1) == "a"
    scheduler.remove(b)
    assert passes(scheduler, 4) == "caca"


def test_emptied_round_has_no_further_pass() -> None:
    a, b = (a_sequence(name, decoding=True) for name in "ab")
    scheduler = admitted(a, b)
    assert passes(scheduler, 1) == "a"
    scheduler.remove(a)
    scheduler.remove(b)
    assert passes(scheduler, 1) == "-"
    arrive(scheduler, a_sequence("c"))
    assert passes(scheduler, 2) == "cc"


# batches


def test_batched_sequences_share_a_pass_and_others_run_alone() -> None:
    scheduler = admitted(
        *(a_sequence(name, decoding=True, batched=name in "acd") for name in "abcde"), a_sequence("p", batched=True)
    )
    assert passes(scheduler, 8) == "(acd)bep(acd)bep"


def test_prompt_joins_the_batch_after_its_first_token() -> None:
    prompt = a_sequence("p", batched=True, num_prompt=3)
    scheduler = admitted(a_sequence("a", decoding=True, batched=True), prompt)
    assert passes(scheduler, 4) == "apap"
    produce(prompt)
    assert passes(scheduler, 2) == "(ap)(ap)"


def test_sequence_moved_to_the_batch_has_no_second_pass_a_round() -> None:
    a, b, c = (a_sequence(name, decoding=True) for name in "abc")
    scheduler = admitted(a, b, c)
    assert passes(scheduler, 1) == "a"
    b.batched = True
    assert passes(scheduler, 3) == "cba"


# chunks


def test_chunk_is_longer_without_decoding_sequences() -> None:
    prompt = a_sequence("p", batched=True, num_prompt=50)
    assert chunks_of(admitted(prompt), prompt) == [24, 24, 2]
    prompt = a_sequence("p", batched=True, num_prompt=50)
    assert chunks_of(admitted(prompt, a_sequence("a", decoding=True, batched=True)), prompt) == [8, 8, 8, 8, 8, 8, 2]


def test_chunk_next_to_a_stream_is_limited_by_measured_time() -> None:
    prompt = a_sequence("p", batched=True, num_prompt=500)
    scheduler = admitted(a_sequence("a", decoding=True, batched=True), prompt, prefill_chunk=100, idle_chunk=0)
    found = []
    for decoding, per_token in [(0.01, 0.001), (0.01, 0.001), (0.03, 0.001), (0.0001, 0.001), (10.0, 0.001)]:
        step = next_step(scheduler)
        assert step.decodes
        scheduler.observe(step, decoding)
        step = next_step(scheduler)
        assert not step.decodes
        scheduler.observe(step, step.num_tokens * per_token)
        found.append(step.num_tokens)
    # The first is small, because nothing is known of prompts; then 3 times the decoding time, within the limits.
    assert found == [16, 30, 90, 16, 100]


def test_pass_that_cannot_be_interrupted_is_always_short() -> None:
    prompt = a_sequence("p", num_prompt=20)
    assert chunks_of(admitted(prompt), prompt) == [8, 8, 4]


@pytest.mark.parametrize("most", [1, 2, 7, 32, 33, 100])
def test_chunks_are_as_long_as_they_may_be(most: int) -> None:
    for num_prompt in range(1, 3 * most + 2):
        prompt = a_sequence("p", num_prompt)
        *chunks, last = chunks_of(admitted(prompt, prefill_chunk=most, idle_chunk=0), prompt)
        assert chunks == [most] * len(chunks)
        assert last <= most + 1
        assert last > 1 or num_prompt == 1 or most == 1  # no token of a prompt is left alone
        assert sum(chunks) + last == num_prompt


def test_reading_begins_behind_what_came_from_the_cache() -> None:
    prompt = a_sequence("p", batched=True, num_prompt=30)
    prompt.num_read = 21
    assert chunks_of(admitted(prompt), prompt) == [9]


def test_produced_tokens_are_read_again_like_a_prompt() -> None:
    sequence = a_sequence("p", num_prompt=10)
    for _ in range(7):
        sequence.append(5)
    # The last of the seven tokens is left to a decoding pass, as usual.
    assert chunks_of(admitted(sequence), sequence) == [8, 8]


# mixed steps


def _mixing(*sequences: Sequence, itl_target: float = 0.0) -> Scheduler:
    policy = StepPolicy(itl_target=itl_target)
    return admitted(*sequences, runner=able_runner(), prefill_chunk=64, idle_chunk=128, policy=policy)


def _batched(name: str, **how: Any) -> Sequence:
    return a_sequence(name, batched=True, **how)


def test_mixed_step_decodes_and_reads_a_chunk() -> None:
    scheduler = _mixing(_batched("a", decoding=True), _batched("b", decoding=True), _batched("p", num_prompt=50))
    step = next_step(scheduler)
    assert [(read.sequence.request.request_id, read.num_tokens, read.decodes) for read in step.chunks] == [
        ("a", 1, True),
        ("b", 1, True),
        ("p", 16, False),
    ]
    assert (sum(read.decodes for read in step.chunks), step.decodes, step.num_tokens) == (2, False, 18)
    assert passes(scheduler, 2) == "(abp)(abp)"


def test_unbatched_sequences_have_their_own_passes() -> None:
    scheduler = _mixing(_batched("a", decoding=True), a_sequence("g", decoding=True), _batched("p", num_prompt=50))
    assert passes(scheduler, 4) == "(ap)g(ap)g"
    scheduler = _mixing(_batched("a", decoding=True), a_sequence("q", num_prompt=50))
    assert passes(scheduler, 4) == "aqaq"


def test_exact_and_scored_sequences_share_passes() -> None:
    for decoding, prompt in (({"exact": True}, {}), ({}, {"exact": True}), ({}, {"prompt_logprobs": True})):
        scheduler = _mixing(_batched("a", decoding=True, **decoding), _batched("p", num_prompt=50, **prompt))
        assert passes(scheduler, 4) == "(ap)(ap)(ap)(ap)"


def _read(scheduler: Scheduler) -> list[tuple[str, int]]:
    """The names and numbers of tokens of the next pass."""
    return [(read.sequence.request.request_id, read.num_tokens) for read in next_step(scheduler).chunks]


def test_short_prompts_share_a_pass_of_a_usual_chunk() -> None:
    prompts = [_batched(name, num_prompt=20) for name in "pqrs"]
    assert _read(_mixing(*prompts)) == [("p", 20), ("q", 20), ("r", 20)]


def test_part_of_a_further_prompt_fills_the_pass() -> None:
    assert _read(_mixing(_batched("p", num_prompt=20), _batched("q", num_prompt=90))) == [("p", 20), ("q", 44)]


def test_prompt_beside_a_large_chunk_waits() -> None:
    assert _read(_mixing(_batched("p", num_prompt=100), _batched("q", num_prompt=120))) == [("p", 100)]


def test_prompt_that_begins_like_one_being_read_waits() -> None:
    prompts = []
    for name, num_common in (("p", 25), ("q", 20), ("r", 10)):
        prompts.append(asking([1] * num_common + [9] * (25 - num_common), request_id=name))
        prompts[-1].batched = True
    assert _read(_mixing(*prompts)) == [("p", 25), ("r", 25)]


def _observed(scheduler: Scheduler, decoding: float, per_token: float) -> list[int]:
    """The chunk sizes of mixed steps if a pass takes a number of seconds, plus a number of seconds for each token of a
    chunk.
    """
    found = []
    for _ in range(4):
        step = next_step(scheduler)
        num_read = step.num_tokens - sum(read.decodes for read in step.chunks)
        scheduler.observe(step, decoding + per_token * num_read)
        found.append(num_read)
    return found


@pytest.mark.parametrize(
    ("num_prompts", "itl_target", "chunks"),
    [
        (1, 0.0, [16, 30, 30, 30]),  # four times what decoding takes
        (2, 0.0, [16, 60, 60, 60]),  # more while more prompts wait
        (3, 0.06, [16, 49, 49, 49]),
        (1, 0.005, [16, 16, 16, 16]),  # the smallest chunk, for the target cannot be kept
    ],
)
def test_step_has_a_multiple_of_its_decoding_or_the_target(
    num_prompts: int, itl_target: float, chunks: list[int]
) -> None:
    scheduler = _mixing(_batched("a", decoding=True), itl_target=itl_target)
    step = next_step(scheduler)
    assert step.decodes
    scheduler.observe(step, 0.01)
    arrive(scheduler, *(_batched(name, num_prompt=500) for name in "pqr"[:num_prompts]))
    assert _observed(scheduler, 0.01, 0.001) == chunks


def test_times_of_the_start_size_the_first_chunks() -> None:
    runner = able_runner()
    runner.abilities = replace(runner.abilities, tried_passes={1: 0.01, 16: 0.03}, tried_prompt_token=0.001)
    scheduler = admitted(_batched("a", decoding=True), _batched("p", num_prompt=500), runner=runner, prefill_chunk=64)
    assert _observed(scheduler, 0.01, 0.001) == [30, 30, 30, 30]


# choice of the prompt


def _prompt(name: str, num_prompt: int, clock: HandClock, *, id: int = 0, priority: int = 0) -> Sequence:
    request = GenerationRequest(name, [1] * num_prompt, 10, 4000, priority=priority)
    sequence = Sequence(id, (0, id), request, clock)
    sequence.batched = True
    return sequence


def test_the_prompt_with_the_fewest_tokens_left_is_read_first(clock: HandClock) -> None:
    long, short = _prompt("l", 100, clock, id=1), _prompt("s", 30, clock, id=2)
    scheduler = admitted(long, short)
    assert passes(scheduler, 1) == "s"
    long.num_read = 80
    assert passes(scheduler, 1) == "l"
    assert passes(admitted(_prompt("b", 50, clock, id=2), _prompt("a", 50, clock, id=1)), 1) == "a"


def test_long_prompt_is_not_starved_by_short_ones(clock: HandClock) -> None:
    long = _prompt("l", 1000, clock, id=1)
    scheduler = admitted(long)
    step = next_step(scheduler)
    scheduler.observe(step, 0.001 * step.num_tokens)  # a thousand tokens a second
    arrive(scheduler, _prompt("s", 10, clock, id=2))
    assert passes(scheduler, 1) == "s"
    clock.wait(3.0)
    arrive(scheduler, _prompt("t", 10, clock, id=3))
    scheduler.remove(next(s for s in scheduler.running if s.id == 2))
    assert passes(scheduler, 1) == "l"


def test_priority_goes_before_length_and_waiting_raises_it(clock: HandClock) -> None:
    late, urgent = _prompt("l", 10, clock, id=1, priority=1), _prompt("u", 500, clock, id=2)
    assert passes(admitted(late, urgent), 1) == "u"
    clock.wait(31.0)
    scheduler = admitted(_prompt("u", 500, clock, id=3))
    scheduler.running.append(late)
    assert passes(scheduler, 1) == "l"


def test_long_waiting_request_precedes_an_urgent_one(clock: HandClock) -> None:
    scheduler = a_scheduler(_prompt("l", 10, clock, id=1, priority=1), max_running=1)
    clock.wait(61.0)
    scheduler.add(_prompt("u", 10, clock, id=2))
    assert names_of(scheduler.admit()) == ["l"]


def test_prefix_lookup_precedes_the_first_chunk_only(clock: HandClock) -> None:
    prompt, asked = _prompt("p", 100, clock), []

    def find(sequence: Sequence) -> None:
        asked.append(sequence)
        sequence.num_read = sequence.num_cached = 90

    scheduler = admitted(prompt)
    scheduler.before_first_chunk = find
    assert next_step(scheduler).num_tokens == 10
    prompt.num_read = 95
    scheduler.next_step()
    assert asked == [prompt]


# drafts


def _speculating(*sequences: Sequence) -> Scheduler:
    """A scheduler that knows that a single token takes a second; further tokens are assumed to cost little."""
    scheduler = admitted(
        *sequences,
        runner=able_runner(),
        max_running=len(sequences),
        prefill_chunk=64,
        idle_chunk=0,
        policy=StepPolicy(speculates=True),
    )
    scheduler.observe(Step([ScheduledChunk.next(_batched("s", decoding=True))]), 1.0)
    return scheduler


def _repeating(name: str, **how: Any) -> Sequence:
    """A decoding sequence whose prompt repeats one token."""
    sequence = _batched(name, num_prompt=50, **how)
    sequence.num_read = 50
    sequence.append(1)
    return sequence


def _drafted(scheduler: Scheduler) -> list[int]:
    step = next_step(scheduler)
    assert all(read.num_tokens == 1 + len(read.draft) for read in step.chunks)
    return [len(read.draft) for read in step.chunks]


def test_a_step_of_a_lone_sequence_reads_a_draft() -> None:
    step = next_step(_speculating(_repeating("a")))
    (read,) = step.chunks
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
    assert min(_drafted(scheduler)) > 0


def test_large_batch_has_no_drafts() -> None:
    number = 70
    scheduler = _speculating(*(_repeating(f"{index}") for index in range(number)))
    scheduler.observe(Step([ScheduledChunk.next(_batched("s", decoding=True)) for _ in range(number)]), 1.0)
    assert _drafted(scheduler) == [0] * number


def test_step_that_reads_a_prompt_has_no_drafts() -> None:
    step = next_step(_speculating(_repeating("a"), _batched("p", num_prompt=50)))
    assert [len(read.draft) for read in step.chunks] == [0, 0]


def test_unbatched_sequences_have_no_drafts() -> None:
    sequence = _repeating("a")
    sequence.batched = False
    assert _drafted(_speculating(sequence)) == [0]


def test_sequence_that_a_profile_awaits_has_no_draft() -> None:
    sequence = _repeating("a")
    scheduler = _speculating(sequence)
    sequence.profile.is_awaited = True
    assert _drafted(scheduler) == [0]
    sequence.profile.is_awaited = False
    assert _drafted(scheduler)[0] > 0


def test_failing_source_of_drafts_loses_only_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def broken(*args: object) -> list[int]:
        tried.append(args)
        raise ZeroDivisionError

    monkeypatch.setattr(TextDrafts, "propose", broken)
    assert _drafted(_speculating(_repeating("a"))) == [0]
    assert len(tried) == 1


def _remembering(*sequences: Sequence, memory: AnswerMemory | None = None) -> Scheduler:
    """A scheduler that keeps answers, with these sequences."""
    policy = StepPolicy(speculates=True, answers=memory or AnswerMemory(10**6))
    return admitted(*sequences, runner=able_runner(), policy=policy)


def _answered(name: str, **fields: Any) -> Sequence:
    """A sequence with an answer of 30 different tokens."""
    sequence = _batched(name, decoding=True, **{"answer_memory": "key"} | fields)
    sequence.tokens += range(100, 130)
    return sequence


def _finds(scheduler: Scheduler, **fields: Any) -> bool:
    """Whether a new sequence drafts from an answer of `_answered`."""
    sequence = _batched("n", decoding=True, **{"answer_memory": "key"} | fields)
    scheduler.add(sequence)
    return list(sequence.text_drafts.propose([*sequence.tokens, *range(100, 110)], 3).tokens) == [110, 111, 112]


@pytest.mark.parametrize(
    ("asked", "asking", "finds"),
    [
        ({}, {}, True),
        ({}, {"low_priority": True}, True),
        ({"low_priority": True}, {}, False),
        ({}, {"cache_prompt": False}, False),
        ({"cache_prompt": False}, {}, True),
        ({"exact": True}, {}, True),
        ({"sampling": Sampling(1.0, seed=1)}, {}, True),
        ({}, {"answer_memory": "other key"}, False),
        ({}, {"answer_memory": ""}, False),
        ({"answer_memory": ""}, {"answer_memory": ""}, False),
    ],
)
def test_ended_answer_is_drafted_by_requests_that_may(
    asked: dict[str, Any], asking: dict[str, Any], *, finds: bool
) -> None:
    sequence = _answered("a", **asked)
    scheduler = _remembering(sequence)
    assert not _finds(scheduler, **asking)
    scheduler.remove(sequence)
    assert _finds(scheduler, **asking) is finds


def test_answer_that_cannot_be_kept_ends_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(AnswerMemory, "add", broken)
    sequence = _answered("a")
    scheduler = _remembering(sequence)
    scheduler.remove(sequence)
    assert scheduler.is_idle


def test_request_without_an_answer_keeps_nothing() -> None:
    sequence = a_sequence("a", 20, answer_memory="key")
    scheduler = _remembering(sequence)
    scheduler.remove(sequence)
    assert scheduler.answers is not None
    assert scheduler.answers.num_bytes == 0


def test_drafts_end_while_their_passes_take_too_long() -> None:
    sequence = _repeating("a")
    scheduler = _speculating(sequence)
    for _ in range(20):
        step = next_step(scheduler)
        if not step.chunks[0].draft:
            break
        scheduler.observe(step, 30.0)
        scheduler.verified(sequence, len(step.chunks[0].draft), 0)
    assert _drafted(scheduler) == [0]


# low priority


def _background(name: str, num_prompt: int = 1, **how: Any) -> Sequence:
    return a_sequence(name, num_prompt, batched=True, low_priority=True, **how)


def test_background_reads_nothing_while_others_are_present() -> None:
    decoding, prompt, x = _background("a", decoding=True), _background("p", 50), _batched("x", num_prompt=50)
    scheduler = _mixing(decoding, prompt)
    assert passes(scheduler, 2) == "(ap)(ap)"
    arrive(scheduler, x)
    assert passes(scheduler, 2) == "xx"
    produce(x)
    assert passes(scheduler, 2) == "xx"
    scheduler.remove(x)
    assert passes(scheduler, 1) == "(ap)"


def test_background_reads_nothing_while_a_request_is_prepared() -> None:
    scheduler = _mixing(_background("a", decoding=True))
    x = _batched("x")
    x.state = SequenceState.PREPARING
    scheduler.add(x)
    scheduler.admit()
    assert passes(scheduler, 1) == "-"
    scheduler.remove(x)
    assert passes(scheduler, 1) == "a"


def test_round_of_the_background_ends_when_another_arrives() -> None:
    scheduler = admitted(*(a_sequence(name, decoding=True, low_priority=True) for name in "abc"))
    assert passes(scheduler, 1) == "a"
    arrive(scheduler, a_sequence("x", decoding=True))
    assert passes(scheduler, 2) == "xx"


def _on_a_gpu(*sequences: Sequence) -> Scheduler:
    runner = able_runner()
    runner.abilities = replace(runner.abilities, uses_host_cores=False)
    return admitted(*sequences, runner=runner, prefill_chunk=64, idle_chunk=128)


def _timed(scheduler: Scheduler, times: dict[int, float]) -> None:
    """Let the scheduler know how long passes of this number of decoding sequences take now."""
    for number, seconds in times.items():
        rows = [_batched(f"{row}", decoding=True) for row in range(number)]
        for _ in range(3):
            scheduler.observe(Step([ScheduledChunk.next(row) for row in rows]), seconds)


@pytest.mark.parametrize(
    ("times", "beside"),
    [
        ({1: 0.010, 4: 0.016}, []),
        ({1: 0.010, 4: 0.0102}, ["a", "b", "c"]),
        ({1: 0.010, 3: 0.0102, 4: 0.0130}, ["a", "b"]),
        ({4: 0.0102}, []),  # nothing is known of a pass without them
    ],
)
def test_background_decodes_beside_others_where_that_is_free(times: dict[int, float], beside: list[str]) -> None:
    scheduler = _on_a_gpu(*(_background(name, decoding=True) for name in "abc"), _batched("x", decoding=True))
    _timed(scheduler, times)
    assert names_of(next_step(scheduler).sequences) == ["x", *beside]


def test_background_prompt_is_read_beside_others_where_free() -> None:
    scheduler = _on_a_gpu(_background("a", decoding=True), _background("p", 500), _batched("x", decoding=True))
    _timed(scheduler, {1: 0.010, 40: 0.0101})
    step = next_step(scheduler)
    assert names_of(step.sequences) == ["x", "a", "p"]
    assert step.chunks[2].num_tokens >= 32
    # A pass that turns out to be slow leaves them out.
    scheduler.observe(step, 1.0)
    for _ in range(3):
        scheduler.observe(step, 1.0)
    assert step.num_tokens > next_step(scheduler).num_tokens


def test_background_reads_nothing_beside_others_on_host_cores() -> None:
    scheduler = _mixing(_background("a", decoding=True), _batched("x", decoding=True))
    _timed(scheduler, {1: 0.010, 4: 0.010})
    assert names_of(next_step(scheduler).sequences) == ["x"]


def test_pass_of_the_background_is_short() -> None:
    scheduler = _mixing(_background("p", 500))
    step = next_step(scheduler)
    assert step.num_tokens == 64  # nothing was measured
    scheduler.observe(step, 0.064 * 4)
    assert next_step(scheduler).num_tokens == 25  # 0.1 s
    runner = able_runner()
    runner.abilities = replace(runner.abilities, interrupts=True)
    scheduler = admitted(_background("p", 500), runner=runner, prefill_chunk=64, idle_chunk=128)
    scheduler.observe(step, 0.064 * 4)
    assert next_step(scheduler).num_tokens == 62  # 0.25 s


def test_pass_that_others_must_wait_for_decodes_few_sequences() -> None:
    scheduler = _mixing(*(_background(name, decoding=True) for name in "abcd"))
    assert passes(scheduler, 1) == "(abcd)"
    _timed(scheduler, {1: 0.06, 2: 0.09, 4: 0.15})
    assert passes(scheduler, 1) == "(ab)"
    _timed(scheduler, {1: 0.6, 2: 0.9, 4: 1.5})
    assert passes(scheduler, 1) == "a"
