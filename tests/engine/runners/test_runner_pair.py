"""The runner of each sequence, and sequences that are profiled in the batch during an answer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import LoadedAdapter, Sequence
from genai_server.messages.generation_request import Batching, GenerationRequest
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

    def run(self, sequence: Sequence, produced: int, *, profiles: bool | None = None) -> None:
        """Run passes until the sequence has so many tokens, after switching its profiling if `profiles` is given."""
        if profiles is not None:
            self.profile(sequence, on=profiles)
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
def undisturbed(session: Any) -> Undisturbed:
    """The answer to a prompt alone in an own batch, with an empty past."""

    def alone(prompt: list[int], steps: int) -> list[int]:
        batched = batched_runner(session=session, num_slots=SLOTS, max_length=MAX_LENGTH)
        engine = Engine(LoadedModel(batched, batched))
        engine.run(sequence := engine.begin(0, prompt), steps)
        return produced(sequence, steps)

    return alone


def produced(sequence: Sequence, number: int) -> list[int]:
    return sequence.tokens[len(sequence.request.prompt) :][:number]


# the first runner of a sequence


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
        engine.run(first, 3, profiles=True)
        engine.run(first, 4, profiles=False)
    for key, salt in ((2, "b"), (3, None)):
        other = engine.begin(key, [*text(40), *text(9, 1)], cache_salt=salt)
        assert (other.num_cached, other.num_read) == (0, 0)
        engine.end(other)
    assert engine.begin(4, [*text(40), *text(9, 1)], cache_salt="a").num_cached == 40


def test_generators_run_everything_without_a_batched_runner() -> None:
    engine = Engine(LoadedModel(ScriptedRunner(), reason="because"))
    sequence = engine.begin(1, list(b"say hi\n\x04"))
    assert not sequence.batched
    assert engine.runners.loaded.batching == Batching("generator", "because", exact=True)
    engine.run(sequence, 2, profiles=True)
    assert bytes(produced(sequence, 2)) == b"hi"
    assert engine.runners.main.forget() == 0


def test_batching_is_described(engine: Engine) -> None:
    nodes = dict(engine.runners.main.nodes)
    assert engine.runners.loaded.batching == Batching("batched", None, SLOTS, nodes, mixes=True, exact=True)


# profiles during an answer


def test_a_profiled_sequence_and_others_answer_as_undisturbed(engine: Engine, undisturbed: Undisturbed) -> None:
    sequences = [engine.begin(1, text(20)), engine.begin(2, text(70)), engine.begin(3, text(38))]
    for on, num_passes in ((False, 2), (True, 6), (False, 3)) * 3:  # at first within the prompt
        engine.profile(sequences[1], on=on)
        for _ in range(num_passes):
            engine.step()
        assert all(sequence.batched for sequence in sequences)
    for sequence in sequences:
        engine.run(sequence, STEPS)
        assert produced(sequence, STEPS) == undisturbed(sequence.request.prompt, STEPS)
