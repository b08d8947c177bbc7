"""Sequences that change over between the batched runner and the library's Generator in the middle of an answer."""

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.runners.base import Terminated
from genai_server.engine.runners.batched import BatchedRunner, BatchLimits
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.generation import Batching, GenerationRequest
from genai_server.text.codec import load_text_codec
from tests.running_server import DEMO

MAX_LENGTH = 512
SLOTS = 4
STEPS = 24


class Engine:
    """A pair and a scheduler, driven as the loop drives them; everybody answers greedily and goes on for ever."""

    def __init__(self, runners: RunnerPair) -> None:
        self.runners = runners
        self.scheduler = Scheduler(max_running=SLOTS, max_waiting=0, prefill_chunk=16, idle_chunk=64)

    def begin(self, number: int, prompt: list[int], **fields: Any) -> Sequence:
        request = GenerationRequest(f"r{number}", prompt, 400, MAX_LENGTH, **fields)
        sequence = Sequence(number, (0, number), request, lambda: 0.0)
        self.scheduler.add(sequence)
        self.scheduler.admit()
        self.runners.open(sequence)
        return sequence

    def step(self) -> None:
        """One pass, of whoever has the turn."""
        step = self.scheduler.next_step()
        assert step is not None
        for sequence, scores in zip(step.sequences, self.runners.forward(step), strict=True):
            if sequence.num_unread == 0:
                sequence.append(int(scores.last.argmax()))

    def run(self, sequence: Sequence, produced: int) -> None:
        while sequence.num_produced < produced:
            self.step()

    def end(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.scheduler.remove(sequence)
            self.runners.close(sequence)


@pytest.fixture
def engine(generator: OgGeneratorRunner, session: Any) -> Iterator[Engine]:
    graph = read_decoder_graph(DEMO)
    batched = BatchedRunner(graph, session, generator.model, BatchLimits(SLOTS, MAX_LENGTH))
    engine = Engine(RunnerPair(generator, batched))
    yield engine
    engine.end(*engine.scheduler.running)
    assert batched.slots.num_running == batched.slots.num_decoding == 0
    assert generator._generators == {}


Undisturbed = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def undisturbed(generator: OgGeneratorRunner, session: Any) -> Undisturbed:
    """The answer of a prompt that stays alone in a batch of its own, whose past is empty."""

    @cache
    def alone(prompt: tuple[int, ...], steps: int) -> list[int]:
        graph = read_decoder_graph(DEMO)
        batched = BatchedRunner(graph, session, generator.model, BatchLimits(SLOTS, MAX_LENGTH))
        engine = Engine(RunnerPair(generator, batched))
        sequence = engine.begin(0, list(prompt))
        engine.run(sequence, steps)
        return produced(sequence, steps)

    return lambda prompt, steps: alone(tuple(prompt), steps)


def text(length: int, seed: int = 0) -> list[int]:
    """Tokens without sense."""
    chance = random.Random(f"{seed} {length}")
    return [chance.randrange(10, 1900) for _ in range(length)]


@cache
def counting(number: int) -> list[int]:
    """A prompt whose answer the model is sure of: what is read anew rounds otherwise than what was decoded, and among
    tokens without sense that can change which is the best."""
    codec = load_text_codec(DEMO, "cpu")
    return asyncio.run(codec.encode_chat([{"role": "user", "content": f"Count from 1 to {number}."}]))


def produced(sequence: Sequence, number: int) -> list[int]:
    return sequence.tokens[len(sequence.request.prompt) :][:number]


# where a sequence begins


def test_a_sequence_begins_in_the_batch_and_one_that_is_profiled_on_a_generator(engine: Engine) -> None:
    assert engine.begin(1, text(5)).batched
    profiled = Sequence(2, (0, 2), GenerationRequest("r2", text(5), 10, 100), lambda: 0.0)
    profiled.profile.prefix = "slow"
    engine.scheduler.add(profiled)
    engine.scheduler.admit()
    engine.runners.open(profiled)
    assert not profiled.batched


def test_what_came_from_the_cache_is_read_and_counted_as_cached(engine: Engine) -> None:
    first = engine.begin(1, text(40))
    engine.run(first, 1)
    second = engine.begin(2, [*text(40), *text(9, 1)])
    assert (first.num_cached, second.num_cached, second.num_read) == (0, 40, 40)
    third = engine.begin(3, [*text(40), *text(9, 2)], cache_prompt=False)
    assert (third.num_cached, third.num_read) == (0, 0)


@pytest.mark.parametrize("changes_over", [False, True])
def test_the_past_of_another_salt_is_not_used_also_after_it_was_on_a_generator(
    engine: Engine, changes_over: bool
) -> None:
    first = engine.begin(1, text(40), cache_salt="a")
    engine.run(first, 1)
    if changes_over:
        engine.runners.to_generator(first)
        engine.run(first, 3)
        engine.runners.to_batch(first)
        engine.run(first, 4)
    for key, salt in ((2, "b"), (3, None)):
        other = engine.begin(key, [*text(40), *text(9, 1)], cache_salt=salt)
        assert (other.num_cached, other.num_read) == (0, 0)
        engine.end(other)
    assert engine.begin(4, [*text(40), *text(9, 1)], cache_salt="a").num_cached == 40


def test_forgetting_counts_the_pasts_and_leaves_those_who_run(engine: Engine) -> None:
    first, second = engine.begin(1, text(20)), engine.begin(2, text(30))
    engine.run(second, 1)
    engine.end(first)
    assert engine.runners.forget() == 1
    again = engine.begin(3, text(40))
    assert again.num_cached == 0


def test_without_a_batched_runner_all_are_on_generators_and_the_reason_is_told() -> None:
    engine = Engine(RunnerPair(ScriptedRunner(), reason="because"))
    sequence = engine.begin(1, list(b"say hi\n\x04"))
    engine.runners.to_batch(sequence)
    assert not sequence.batched
    assert engine.runners.batching == Batching("generator", "because")
    engine.run(sequence, 2)
    assert bytes(produced(sequence, 2)) == b"hi"
    assert engine.runners.forget() == 0
    engine.runners.interrupt()


def test_what_is_told_of_the_batch(engine: Engine) -> None:
    assert engine.runners.batching == Batching("batched", None, SLOTS, True)


# changing over


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("there", "back"), [(1, 2), (1, 9), (5, 6), (8, 16)])
def test_there_and_back_in_the_middle_of_an_answer_repeats_and_loses_no_token(
    engine: Engine, undisturbed: Undisturbed, there: int, back: int, exact: bool
) -> None:
    prompt = text(50) if exact else counting(90)
    sequence = engine.begin(1, prompt, exact=exact)
    places = []
    for change, until in (
        (lambda _: None, there),
        (engine.runners.to_generator, back),
        (engine.runners.to_batch, STEPS),
    ):
        change(sequence)
        places.append(sequence.batched)
        engine.run(sequence, until)
    assert places == [True, False, True]
    assert produced(sequence, STEPS) == undisturbed(prompt, STEPS)


def test_the_others_are_not_disturbed(engine: Engine, undisturbed: Undisturbed) -> None:
    sequences = [engine.begin(1, text(20)), engine.begin(2, counting(80)), engine.begin(3, text(38))]
    for sequence in sequences:
        engine.run(sequence, 3)
    for _ in range(3):
        engine.runners.to_generator(sequences[1])
        for _ in range(6):
            engine.step()
        engine.runners.to_batch(sequences[1])
        for _ in range(3):
            engine.step()
    for sequence in sequences:
        engine.run(sequence, STEPS)
        assert produced(sequence, STEPS) == undisturbed(sequence.request.prompt, STEPS)


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_one_that_changes_over_within_its_prompt_reads_each_token_of_it_once(
    engine: Engine, undisturbed: Undisturbed, passes: int
) -> None:
    other = engine.begin(1, text(30, 1))
    engine.run(other, 1)
    sequence = engine.begin(2, text(70))
    for _ in range(2 * passes):
        engine.step()
    read = sequence.num_read
    engine.runners.to_generator(sequence)
    assert (sequence.num_read, sequence.num_cached) == (0, 0)
    for _ in range(4):
        engine.step()
    engine.runners.to_batch(sequence)
    assert 0 < sequence.num_read < 70
    assert read in (0, 16, 32)
    engine.run(sequence, STEPS)
    assert produced(sequence, STEPS) == undisturbed(text(70), STEPS)
    assert produced(other, STEPS) == undisturbed(text(30, 1), STEPS)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("passes", [1, 4])
def test_one_that_comes_back_before_its_past_was_read_anew_goes_on_reading_in_the_batch(
    engine: Engine, undisturbed: Undisturbed, passes: int, exact: bool
) -> None:
    prompt = text(20) if exact else counting(70)
    other = engine.begin(1, text(11))
    sequence = engine.begin(2, prompt, exact=exact)
    engine.run(sequence, 60)
    engine.runners.to_generator(sequence)
    for _ in range(2 * passes):
        engine.step()
    assert 0 < sequence.num_read < len(prompt) + 59
    engine.runners.to_batch(sequence)
    engine.run(sequence, 80)
    engine.run(other, 80)
    assert produced(sequence, 80) == undisturbed(prompt, 80)
    assert produced(other, 80) == undisturbed(text(11), 80)


@pytest.mark.parametrize("num_prompt", [1, 20])
@pytest.mark.parametrize("passes", [1, 4])
def test_what_an_exact_one_reads_anew_of_its_answer_is_never_a_past_for_another_exact_one(
    engine: Engine, num_prompt: int, passes: int
) -> None:
    sequence = engine.begin(1, text(num_prompt), exact=True)
    engine.run(sequence, 12)
    engine.runners.to_generator(sequence)
    for _ in range(passes):
        engine.step()
    engine.runners.to_batch(sequence)
    assert not sequence.is_decoding
    engine.run(sequence, 14)
    engine.end(sequence)
    follow = engine.begin(2, [*sequence.tokens[:-1], *text(5, 1)], exact=True)
    assert follow.num_cached == (num_prompt if num_prompt > 1 else 0)


def test_one_that_goes_back_at_once_has_read_nothing_and_is_read_in_the_batch(
    engine: Engine, undisturbed: Undisturbed
) -> None:
    sequence = engine.begin(1, counting(60))
    engine.run(sequence, 4)
    engine.runners.to_generator(sequence)
    engine.runners.to_batch(sequence)
    assert sequence.num_read == 0
    engine.run(sequence, STEPS)
    assert produced(sequence, STEPS) == undisturbed(counting(60), STEPS)


def test_changing_over_where_one_is_already_is_nothing(engine: Engine) -> None:
    sequence = engine.begin(1, text(20))
    engine.run(sequence, 2)
    engine.runners.to_batch(sequence)
    assert sequence.num_unread == 1
    engine.runners.to_generator(sequence)
    engine.run(sequence, 3)
    engine.runners.to_generator(sequence)
    assert sequence.num_unread == 1


def test_the_past_of_one_that_came_back_may_be_used_by_others(engine: Engine, undisturbed: Undisturbed) -> None:
    sequence = engine.begin(1, text(40))
    engine.run(sequence, 2)
    engine.runners.to_generator(sequence)
    engine.run(sequence, 4)
    engine.runners.to_batch(sequence)
    engine.run(sequence, 6)
    engine.end(sequence)
    # Of its answer, an exact one gets nothing: it was decoded, though on a Generator.
    follow = [*sequence.tokens[:44], *text(3)]
    engine.end(exact := engine.begin(3, follow, exact=True))
    assert exact.num_cached == 40
    other = engine.begin(2, [*text(40), *text(8, 1)])
    assert other.num_cached == 40
    engine.run(other, STEPS)
    assert produced(other, STEPS) == undisturbed([*text(40), *text(8, 1)], STEPS)


def test_runtime_options_work_on_the_generator_and_end_with_it(engine: Engine) -> None:
    sequence = engine.begin(1, text(20))
    engine.run(sequence, 2)
    engine.runners.to_generator(sequence)
    engine.run(sequence, 3)
    engine.runners.set_runtime_option(sequence, "terminate_session", "1")
    with pytest.raises(Terminated):
        engine.step()
    assert sequence.num_unread == 1


@pytest.mark.parametrize(("row_group", "exact", "may"), [(1, True, True), (2, False, True), (2, True, False)])
def test_an_exact_sequence_may_leave_the_batch_only_where_a_lone_row_is_exact(
    engine: Engine, row_group: int, exact: bool, may: bool
) -> None:
    assert isinstance(engine.runners.batched, BatchedRunner)
    engine.runners.batched.slots.row_group = row_group
    assert (engine.runners.no_profile(engine.begin(1, text(5), exact=exact)) is None) is may
