"""The next pass: one token for all decoding sequences, and one chunk of the prompt with the fewest unread tokens."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

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
    decoding,
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


@pytest.mark.parametrize(
    ("sequences", "found"),
    [
        pytest.param(decoding("abc"), "abcabca", id="decoding sequences take turns in order of arrival"),
        # The prompts came first, but every round has only one chunk.
        pytest.param([*map(a_sequence, "pqr"), *decoding("ab")], "abpabpabp", id="streams pause for one chunk a round"),
        pytest.param(
            [*(a_sequence(name, decoding=True, batched=name in "acd") for name in "abcde"), a_sequence("p")],
            "(acd)bep(acd)bep",
            id="batched sequences share a pass and others run alone",
        ),
    ],
)
def test_a_round_has_one_pass_of_each_stream_and_one_chunk(sequences: list[Sequence], found: str) -> None:
    assert passes(admitted(*sequences), len(found) - 4 * found.count("(")) == found


def test_oldest_prompt_is_read_to_its_end_first() -> None:
    first = a_sequence("p")
    scheduler = admitted(first, a_sequence("q"))
    assert passes(scheduler, 3) == "ppp"
    produce(first)
    assert passes(scheduler, 4) == "pqpq"


def test_prompt_joins_the_batch_after_its_first_token() -> None:
    prompt = a_sequence("p", 3, batched=True)
    scheduler = admitted(*decoding("a", batched=True), prompt)
    assert passes(scheduler, 4) == "apap"
    produce(prompt)
    assert passes(scheduler, 2) == "(ap)(ap)"


def test_prompt_that_arrives_mid_round_is_read_at_its_end() -> None:
    scheduler = admitted(*decoding("ab"))
    assert passes(scheduler, 1) == "a"
    arrive(scheduler, a_sequence("p"))
    assert passes(scheduler, 4) == "bpab"


def test_sequence_removed_mid_round_has_no_further_pass() -> None:
    a, b, c = decoding("abc")
    scheduler = admitted(a, b, c)
    assert passes(scheduler, 1) == "a"
    scheduler.remove(b)
    assert passes(scheduler, 2) == "ca"
    scheduler.remove(a)
    scheduler.remove(c)
    assert passes(scheduler, 1) == "-"
    arrive(scheduler, a_sequence("d"))
    assert passes(scheduler, 2) == "dd"


# batches


def test_sequence_moved_to_the_batch_has_no_second_pass_a_round() -> None:
    a, b, c = decoding("abc")
    scheduler = admitted(a, b, c)
    assert passes(scheduler, 1) == "a"
    b.batched = True
    assert passes(scheduler, 3) == "cba"


# chunks


@pytest.mark.parametrize(
    ("prompt", "others", "chunks"),
    [
        pytest.param(a_sequence("p", 50, batched=True), [], [24, 24, 2], id="longer without decoding sequences"),
        pytest.param(
            a_sequence("p", 50, batched=True), decoding("a", batched=True), [8] * 6 + [2], id="short beside a stream"
        ),
        pytest.param(a_sequence("p", 20), [], [8, 8, 4], id="short in a pass that cannot be interrupted"),
    ],
)
def test_chunk_is_long_where_nobody_has_to_wait_for_it(
    prompt: Sequence, others: list[Sequence], chunks: list[int]
) -> None:
    assert chunks_of(admitted(prompt, *others), prompt) == chunks


def test_chunk_next_to_a_stream_is_limited_by_measured_time() -> None:
    prompt = a_sequence("p", batched=True, num_prompt=500)
    scheduler = admitted(a_sequence("a", decoding=True, batched=True), prompt, prefill_chunk=100, idle_chunk=0)
    found = []
    for seconds, per_token in [(0.01, 0.001), (0.01, 0.001), (0.03, 0.001), (0.0001, 0.001), (10.0, 0.001)]:
        step = next_step(scheduler)
        assert step.decodes
        scheduler.observe(step, seconds)
        step = next_step(scheduler)
        assert not step.decodes
        scheduler.observe(step, step.num_tokens * per_token)
        found.append(step.num_tokens)
    # The first is small, because nothing is known of prompts; then 3 times the decoding time, within the limits.
    assert found == [16, 30, 90, 16, 100]


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
    scheduler = _mixing(*decoding("ab", batched=True), _batched("p", num_prompt=50))
    step = next_step(scheduler)
    assert [(read.sequence.request.request_id, read.num_tokens, read.decodes) for read in step.chunks] == [
        ("a", 1, True),
        ("b", 1, True),
        ("p", 16, False),
    ]
    assert (step.decodes, step.num_tokens) == (False, 18)
    assert passes(scheduler, 2) == "(abp)(abp)"


@pytest.mark.parametrize(
    ("first", "others", "found"),
    [
        ({}, [*decoding("g"), a_sequence("p", 50, batched=True)], "(ap)g(ap)g"),
        ({}, [a_sequence("q", 50)], "aqaq"),
        ({"exact": True}, [a_sequence("p", 50, batched=True)], "(ap)(ap)(ap)(ap)"),
        ({}, [a_sequence("p", 50, batched=True, exact=True)], "(ap)(ap)(ap)(ap)"),
        ({}, [a_sequence("p", 50, batched=True, prompt_logprobs=True)], "(ap)(ap)(ap)(ap)"),
    ],
)
def test_all_share_passes_but_unbatched_sequences(first: dict[str, Any], others: list[Sequence], found: str) -> None:
    assert passes(_mixing(_batched("a", decoding=True, **first), *others), 4) == found


@pytest.mark.parametrize(
    ("prompts", "read"),
    [
        pytest.param(
            [[number] * 20 for number in range(4)], [("p", 20), ("q", 20), ("r", 20)], id="short ones share it"
        ),
        pytest.param([[1] * 20, [2] * 90], [("p", 20), ("q", 44)], id="part of a further one fills it"),
        pytest.param([[1] * 100, [2] * 120], [("p", 100)], id="one beside a large chunk waits"),
        pytest.param(
            [[1] * number + [9] * (25 - number) for number in (25, 20, 10)],
            [("p", 25), ("r", 25)],
            id="one that begins like another waits",
        ),
    ],
)
def test_a_pass_reads_prompts_up_to_a_usual_chunk(prompts: list[list[int]], read: list[tuple[str, int]]) -> None:
    sequences = [asking(prompt, request_id=name) for name, prompt in zip("pqrs", prompts, strict=False)]
    for sequence in sequences:
        sequence.batched = True
    chunks = next_step(_mixing(*sequences)).chunks
    assert [(chunk.sequence.request.request_id, chunk.num_tokens) for chunk in chunks] == read


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
    long, short = _prompt("l", 100, clock), _prompt("s", 30, clock)
    scheduler = admitted(long, short)
    assert passes(scheduler, 1) == "s"
    long.num_read = 80
    assert passes(scheduler, 1) == "l"
    assert passes(admitted(_prompt("b", 50, clock, id=2), _prompt("a", 50, clock, id=1)), 1) == "a"


def test_long_prompt_is_not_starved_by_short_ones(clock: HandClock) -> None:
    scheduler = admitted(_prompt("l", 1000, clock))
    step = next_step(scheduler)
    scheduler.observe(step, 0.001 * step.num_tokens)  # a thousand tokens a second
    short = _prompt("s", 10, clock)
    arrive(scheduler, short)
    assert passes(scheduler, 1) == "s"
    clock.wait(3.0)
    arrive(scheduler, _prompt("t", 10, clock))
    scheduler.remove(short)
    assert passes(scheduler, 1) == "l"


def test_priority_goes_before_length_and_waiting_raises_it(clock: HandClock) -> None:
    late, urgent = _prompt("l", 10, clock, priority=1), _prompt("u", 500, clock)
    assert passes(admitted(late, urgent), 1) == "u"
    clock.wait(31.0)
    scheduler = admitted(_prompt("u", 500, clock))
    scheduler.running.append(late)
    assert passes(scheduler, 1) == "l"


def test_long_waiting_request_precedes_an_urgent_one(clock: HandClock) -> None:
    scheduler = a_scheduler(_prompt("l", 10, clock, priority=1), max_running=1)
    clock.wait(61.0)
    scheduler.add(_prompt("u", 10, clock))
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


def test_sequences_beside_others_have_drafts_unless_a_prompt_is_read_or_they_are_unbatched() -> None:
    assert min(_drafted(_speculating(_repeating("a"), _repeating("b")))) > 0
    step = next_step(_speculating(_repeating("a"), _batched("p", num_prompt=50)))
    assert [len(read.draft) for read in step.chunks] == [0, 0]
    sequence = _repeating("a")
    sequence.batched = False
    assert _drafted(_speculating(sequence)) == [0]


def test_large_batch_has_no_drafts() -> None:
    number = 70
    scheduler = _speculating(*(_repeating(f"{index}") for index in range(number)))
    scheduler.observe(Step([ScheduledChunk.next(_batched("s", decoding=True)) for _ in range(number)]), 1.0)
    assert _drafted(scheduler) == [0] * number


def test_sequence_that_a_profile_awaits_has_no_draft() -> None:
    sequence = _repeating("a")
    scheduler = _speculating(sequence)
    sequence.profile.is_awaited = True
    assert _drafted(scheduler) == [0]
    sequence.profile.is_awaited = False
    assert _drafted(scheduler)[0] > 0


def test_failing_source_of_drafts_loses_only_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr(TextDrafts, "propose", broken)
    assert _drafted(_speculating(_repeating("a"))) == [0]
    broken.assert_called_once()


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
    monkeypatch.setattr(AnswerMemory, "add", Mock(side_effect=MemoryError))
    sequence = _answered("a")
    scheduler = _remembering(sequence)
    scheduler.remove(sequence)
    assert scheduler.is_idle


def test_request_without_an_answer_keeps_nothing() -> None:
    sequence, memory = a_sequence("a", 20, answer_memory="key"), AnswerMemory(10**6)
    _remembering(sequence, memory=memory).remove(sequence)
    assert memory.num_bytes == 0


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
    scheduler = admitted(*decoding("abc", low_priority=True))
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
