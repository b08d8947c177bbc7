"""The runner of each sequence, and sequences that are profiled in the batch during an answer."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import LoadedAdapter, Sequence
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

    def profile(self, sequence: Sequence, *, on: bool) -> None:
        """Switch the profiling of a sequence."""
        sequence.profile.switch("p" if on else None, sequence.num_produced)

    def step(self) -> None:
        """Run one pass, as scheduled."""
        step = self.scheduler.next_step()
        assert step is not None
        assert len(step.chunks) == 1 or not any(sequence.profile.is_on for sequence in step.sequences)
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
def engine(session: Any) -> Iterator[Engine]:
    batched = batched_runner(session=session, num_slots=SLOTS, max_length=MAX_LENGTH)
    engine = Engine(LoadedModel(batched, batched))
    yield engine
    engine.end(*engine.scheduler.running)
    assert batched.slots.num_running == 0


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


def test_sequence_starts_in_the_batch_even_if_it_is_profiled(engine: Engine) -> None:
    assert engine.begin(1, text(5)).batched
    profiled = Sequence(2, (0, 2), GenerationRequest("r2", text(5), 10, 100), lambda: 0.0)
    profiled.profile.prefix = "slow"
    engine.scheduler.add(profiled)
    engine.scheduler.admit()
    engine.runners.open(profiled)
    assert profiled.batched


def test_tokens_from_the_cache_count_as_read_and_cached(engine: Engine) -> None:
    first = engine.begin(1, text(40))
    engine.run(first, 1)
    second = engine.begin(2, [*text(40), *text(9, 1)])
    assert (first.num_cached, second.num_cached, second.num_read) == (0, 40, 40)
    third = engine.begin(3, [*text(40), *text(9, 2)], cache_prompt=False)
    assert (third.num_cached, third.num_read) == (0, 0)


@pytest.mark.parametrize("is_profiled", [False, True])
def test_past_of_another_salt_is_not_used_after_a_profile(engine: Engine, is_profiled: bool) -> None:
    first = engine.begin(1, text(40), cache_salt="a")
    engine.run(first, 1)
    if is_profiled:
        engine.profile(first, on=True)
        engine.run(first, 3)
        engine.profile(first, on=False)
        engine.run(first, 4)
    for key, salt in ((2, "b"), (3, None)):
        other = engine.begin(key, [*text(40), *text(9, 1)], cache_salt=salt)
        assert (other.num_cached, other.num_read) == (0, 0)
        engine.end(other)
    assert engine.begin(4, [*text(40), *text(9, 1)], cache_salt="a").num_cached == 40


def test_generators_run_everything_without_a_batched_runner() -> None:
    engine = Engine(LoadedModel(ScriptedRunner(), reason="because"))
    sequence = engine.begin(1, list(b"say hi\n\x04"))
    engine.profile(sequence, on=True)
    assert not sequence.batched
    assert engine.runners.loaded.batching == Batching("generator", "because", exact=True)
    engine.run(sequence, 2)
    assert bytes(produced(sequence, 2)) == b"hi"
    assert engine.runners.main.forget() == 0


def test_batching_is_described(engine: Engine) -> None:
    assert engine.runners.loaded.batching == Batching(
        "batched", None, SLOTS, dict(engine.runners.main.nodes), mixes=True, exact=True
    )


# profiles during an answer


@pytest.mark.parametrize(("there", "back", "exact"), [(1, 2, False), (1, 9, True), (5, 6, True), (8, 16, False)])
def test_sequence_profiled_mid_answer_repeats_and_loses_no_token(
    engine: Engine, undisturbed: Undisturbed, there: int, back: int, exact: bool
) -> None:
    prompt = text(50) if exact else counting(90)
    sequence = engine.begin(1, prompt, exact=exact)
    for on, until in ((False, there), (True, back), (False, STEPS)):
        engine.profile(sequence, on=on)
        engine.run(sequence, until)
    assert produced(sequence, STEPS) == undisturbed(prompt, STEPS)


def test_profiles_do_not_affect_other_sequences(engine: Engine, undisturbed: Undisturbed) -> None:
    sequences = [engine.begin(1, text(20)), engine.begin(2, counting(80)), engine.begin(3, text(38))]
    for sequence in sequences:
        engine.run(sequence, 3)
    for _ in range(3):
        engine.profile(sequences[1], on=True)
        for _ in range(6):
            engine.step()
        engine.profile(sequences[1], on=False)
        for _ in range(3):
            engine.step()
    for sequence in sequences:
        engine.run(sequence, STEPS)
        assert produced(sequence, STEPS) == undisturbed(sequence.request.prompt, STEPS)


@pytest.mark.parametrize("passes", [0, 1])
def test_sequence_profiled_within_its_prompt_reads_it_whole(
    engine: Engine, undisturbed: Undisturbed, passes: int
) -> None:
    other = engine.begin(1, text(30, 1))
    engine.run(other, 1)
    sequence = engine.begin(2, text(70))
    for _ in range(2 * passes):
        engine.step()
    engine.profile(sequence, on=True)
    for _ in range(2):
        engine.step()
    engine.profile(sequence, on=False)
    engine.run(sequence, STEPS)
    assert produced(sequence, STEPS) == undisturbed(text(70), STEPS)
    assert produced(other, STEPS) == undisturbed(text(30, 1), STEPS)


def test_profile_in_the_batch_reads_nothing_again(generator: OgGeneratorRunner, session: Any) -> None:
    batched = batched_runner(session=session, num_slots=SLOTS, max_length=MAX_LENGTH)
    engine = Engine(LoadedModel(batched, batched))
    sequence = engine.begin(1, text(20))
    engine.run(sequence, 2)
    for on in (True, True, False):
        engine.profile(sequence, on=on)
        assert sequence.num_unread == 1
        engine.step()
    engine.end(sequence)


def test_past_of_a_profiled_sequence_can_be_reused(engine: Engine, undisturbed: Undisturbed) -> None:
    sequence = engine.begin(1, text(40))
    for on, until in ((False, 2), (True, 4), (False, 6)):
        engine.profile(sequence, on=on)
        engine.run(sequence, until)
    engine.end(sequence)
    follow = [*sequence.tokens[:44], *text(3)]
    engine.end(following := engine.begin(3, follow))
    assert following.num_cached == 44
    other = engine.begin(2, [*text(40), *text(8, 1)])
    assert other.num_cached == 40
    engine.run(other, STEPS)
    assert produced(other, STEPS) == undisturbed([*text(40), *text(8, 1)], STEPS)
