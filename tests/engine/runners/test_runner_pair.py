"""Sequences that move between the batched runner and the library's Generator during an answer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from genai_server.engine.loaded_adapter import LoadedAdapter
from genai_server.engine.runners.base import Terminated
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import Batching, GenerationRequest
from tests.demo_device import prompt as question
from tests.engine.model_runners import batched_runner
from tests.tokens import text

MAX_LENGTH = 512
SLOTS = 4
STEPS = 24


class Engine:
    """A pair and a scheduler, driven like in the loop; all sequences answer greedily and never end."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.runners = RunnerPair(loaded)
        self.scheduler = Scheduler(loaded.main, max_running=SLOTS, max_waiting=0, prefill_chunk=16, idle_chunk=64)

    def begin(self, number: int, prompt: list[int], *, adapter: LoadedAdapter | None = None, **fields: Any) -> Sequence:
        request = GenerationRequest(f"r{number}", prompt, 400, MAX_LENGTH, **fields)
        sequence = Sequence(number, (0, number), request, lambda: 0.0, adapter=adapter)
        self.scheduler.add(sequence)
        self.scheduler.admit()
        sequence.reuses_past = self.runners.reuses_past(request)
        self.runners.open(sequence)
        return sequence

    def step(self) -> None:
        """Run one pass, as scheduled."""
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
    batched = batched_runner(session=session, num_slots=SLOTS, max_length=MAX_LENGTH)
    engine = Engine(LoadedModel(generator, batched))
    yield engine
    engine.end(*engine.scheduler.running)
    assert batched.slots.num_running == 0
    assert generator._generators == {}


Undisturbed = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def undisturbed(generator: OgGeneratorRunner, session: Any) -> Undisturbed:
    """The answer to a prompt alone in an own batch, with an empty past."""

    @cache
    def alone(prompt: tuple[int, ...], steps: int) -> list[int]:
        batched = batched_runner(session=session, num_slots=SLOTS, max_length=MAX_LENGTH)
        engine = Engine(LoadedModel(generator, batched))
        sequence = engine.begin(0, list(prompt))
        engine.run(sequence, steps)
        return produced(sequence, steps)

    return lambda prompt, steps: alone(tuple(prompt), steps)


def counting(number: int) -> list[int]:
    """A prompt with an unambiguous answer: a recomputed past rounds otherwise than a decoded one, which can change the
    best token of random prompts.
    """
    return question(f"Count from 1 to {number}.")


def produced(sequence: Sequence, number: int) -> list[int]:
    return sequence.tokens[len(sequence.request.prompt) :][:number]


# the first runner of a sequence


def test_sequence_starts_in_the_batch_unless_it_is_profiled(engine: Engine) -> None:
    assert engine.begin(1, text(5)).batched
    profiled = Sequence(2, (0, 2), GenerationRequest("r2", text(5), 10, 100), lambda: 0.0)
    profiled.profile.prefix = "slow"
    engine.scheduler.add(profiled)
    engine.scheduler.admit()
    engine.runners.open(profiled)
    assert not profiled.batched


def test_tokens_from_the_cache_count_as_read_and_cached(engine: Engine) -> None:
    first = engine.begin(1, text(40))
    engine.run(first, 1)
    second = engine.begin(2, [*text(40), *text(9, 1)])
    assert (first.num_cached, second.num_cached, second.num_read) == (0, 40, 40)
    third = engine.begin(3, [*text(40), *text(9, 2)], cache_prompt=False)
    assert (third.num_cached, third.num_read) == (0, 0)


@pytest.mark.parametrize("changes_over", [False, True])
def test_past_of_another_salt_is_not_used_after_a_move(engine: Engine, changes_over: bool) -> None:
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


def test_forget_counts_pasts_and_keeps_running_sequences(engine: Engine) -> None:
    first, second = engine.begin(1, text(20)), engine.begin(2, text(30))
    engine.run(second, 1)
    engine.end(first)
    assert engine.runners.main.forget() == 1
    again = engine.begin(3, text(40))
    assert again.num_cached == 0


def test_generators_run_everything_without_a_batched_runner() -> None:
    engine = Engine(LoadedModel(ScriptedRunner(), reason="because"))
    sequence = engine.begin(1, list(b"say hi\n\x04"))
    engine.runners.to_batch(sequence)
    assert not sequence.batched
    assert engine.runners.loaded.batching == Batching("generator", "because")
    engine.run(sequence, 2)
    assert bytes(produced(sequence, 2)) == b"hi"
    assert engine.runners.main.forget() == 0


def test_batching_is_described(engine: Engine) -> None:
    assert engine.runners.loaded.batching == Batching(
        "batched", None, SLOTS, False, dict(engine.runners.main.nodes), mixes=True
    )


# moves


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("there", "back"), [(1, 2), (1, 9), (5, 6), (8, 16)])
def test_sequence_moved_mid_answer_repeats_and_loses_no_token(
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


def test_moves_do_not_affect_other_sequences(engine: Engine, undisturbed: Undisturbed) -> None:
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
def test_sequence_moved_within_its_prompt_reads_tokens_once(
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
    assert read in (0, 16, 32, 48, 64)
    engine.run(sequence, STEPS)
    assert produced(sequence, STEPS) == undisturbed(text(70), STEPS)
    assert produced(other, STEPS) == undisturbed(text(30, 1), STEPS)


@pytest.mark.parametrize("passes", [1, 4])
def test_sequence_moved_back_early_continues_in_the_batch(
    engine: Engine, undisturbed: Undisturbed, passes: int
) -> None:
    prompt, beside = counting(70), counting(60)
    other = engine.begin(1, beside)
    sequence = engine.begin(2, prompt)
    engine.run(sequence, 60)
    engine.runners.to_generator(sequence)
    for _ in range(2 * passes):
        engine.step()
    assert 0 < sequence.num_read < len(prompt) + 59
    engine.runners.to_batch(sequence)
    engine.run(sequence, 80)
    engine.run(other, 80)
    assert produced(sequence, 80) == undisturbed(prompt, 80)
    assert produced(other, 80) == undisturbed(beside, 80)


@pytest.mark.parametrize("num_prompt", [1, 20])
@pytest.mark.parametrize("passes", [1, 4])
def test_recomputed_answer_is_no_past_for_exact_sequences(engine: Engine, num_prompt: int, passes: int) -> None:
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


def test_sequence_moved_back_at_once_is_read_in_the_batch(engine: Engine, undisturbed: Undisturbed) -> None:
    sequence = engine.begin(1, counting(60))
    engine.run(sequence, 4)
    engine.runners.to_generator(sequence)
    engine.runners.to_batch(sequence)
    assert sequence.num_read == 0
    engine.run(sequence, STEPS)
    assert produced(sequence, STEPS) == undisturbed(counting(60), STEPS)


def test_moving_to_the_same_runner_has_no_effect(engine: Engine) -> None:
    sequence = engine.begin(1, text(20))
    engine.run(sequence, 2)
    engine.runners.to_batch(sequence)
    assert sequence.num_unread == 1
    engine.runners.to_generator(sequence)
    engine.run(sequence, 3)
    engine.runners.to_generator(sequence)
    assert sequence.num_unread == 1


def test_past_of_a_returned_sequence_can_be_reused(engine: Engine, undisturbed: Undisturbed) -> None:
    sequence = engine.begin(1, text(40))
    engine.run(sequence, 2)
    engine.runners.to_generator(sequence)
    engine.run(sequence, 4)
    engine.runners.to_batch(sequence)
    engine.run(sequence, 6)
    engine.end(sequence)
    # An exact sequence reuses no tokens of this answer: they were decoded, though on a Generator.
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
    engine.runners.generator.set_runtime_option(sequence.id, "terminate_session", "1")
    with pytest.raises(Terminated):
        engine.step()
    assert sequence.num_unread == 1


@pytest.mark.parametrize(("row_group", "exact", "may"), [(1, True, True), (2, False, True), (2, True, False)])
def test_exact_sequence_leaves_the_batch_only_if_rows_are_exact(
    engine: Engine, row_group: int, exact: bool, may: bool
) -> None:
    assert isinstance(engine.runners.main, BatchedRunner)
    engine.runners.main.abilities = replace(engine.runners.main.abilities, exact=row_group == 1)
    assert (engine.runners.no_profile(engine.begin(1, text(5), exact=exact)) is None) is may
