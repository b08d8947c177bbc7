"""The batched runner on the demo model: its answers are those of the library's Generator.

All products are those of genai-server-native, so that logits of the same tokens are bitwise the same in all passes.
"""

import json
import random
import tracemalloc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import pytest
from _models.driven import Driven

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.kv_cache.buffers import CpuBuffers
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.scores import Logits
from genai_server.errors import RunnerFailed
from genai_server.options.device import DeviceOptions
from genai_server.options.session import SPINNING
from tests.engine.model_runners import TIE, answer_with_inputs, batched_runner, interrupts
from tests.running_server import DEMO
from tests.tokens import text

MAX_LENGTH = 1024
SLOTS = 6
STEPS = 16


class Reference:
    """Greedy answers of fresh Generators of the library that read the prompt in one pass."""

    def __init__(self) -> None:
        self._model = og.Model(str(DEMO))
        self._known: dict[tuple[int, ...], list[int]] = {}

    def agrees(self, prompt: list[int], answer: list[int], steps: int) -> bool:
        """Whether an answer of so many tokens is the library's, up to the first tie."""
        if (key := (steps, *prompt)) not in self._known:
            how = {"steps": steps, "max_length": MAX_LENGTH}
            self._known[key] = answer_with_inputs(self._model, prompt, {}, **how, tie=TIE)
        expected = self._known[key]
        return len(answer) == steps and answer[: len(expected)] == expected


@pytest.fixture
def runner(session: Any) -> Driven:
    return Driven(batched_runner(session=session, num_slots=SLOTS, max_length=MAX_LENGTH))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


class Batch:
    """Sequences on a runner, with greedy answers."""

    def __init__(self, runner: Driven) -> None:
        self.runner = runner
        self.answers: dict[int, list[int]] = {}

    def begin(self, sequence: int, prompt: list[int], *, chunk: int = MAX_LENGTH, **how: Any) -> int:
        """Read a prompt and choose the first token; returns the number of prompt tokens found in the prefix cache."""
        cached = self.runner.open(sequence, prompt, MAX_LENGTH, **how)
        self.read(sequence, prompt[cached:], chunk=chunk)
        return cached

    def read(self, sequence: int, tokens: list[int], *, chunk: int = MAX_LENGTH) -> None:
        for start in range(0, len(tokens), chunk):
            logits = self.runner.prefill(sequence, tokens[start : start + chunk])
        self.answers[sequence] = [int(logits.argmax())]

    def step(self, *sequences: int) -> None:
        """Decode one token of each sequence in one pass."""
        logits = self.runner.decode(sequences, [self.answers[sequence][-1] for sequence in sequences])
        assert logits.shape == (len(sequences), self.runner.model.vocab_size)
        for sequence, row in zip(sequences, logits, strict=True):
            self.answers[sequence].append(int(row.argmax()))

    def answer(self, prompts: dict[int, list[int]], steps: int = STEPS) -> None:
        """Begin these sequences and give each an answer of so many tokens, in common passes."""
        for number, prompt in prompts.items():
            self.begin(number, prompt)
        for _ in range(steps - 1):
            self.step(*prompts)

    def end(self, *sequences: int) -> None:
        for sequence in sequences:
            self.runner.close(sequence)


@pytest.fixture
def batch(runner: Driven) -> Batch:
    return Batch(runner)


def idle(runner: Driven) -> bool:
    return bool(runner.slots.num_running == 0)


# batches


def test_batches_of_every_size_free_their_memory(batch: Batch) -> None:
    for number in range(SLOTS):
        batch.begin(number, text(900, number))
    tracemalloc.start()
    try:
        for rows in range(SLOTS, 0, -1):
            batch.step(*range(rows))
            batch.end(rows - 1)
        arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
        kept = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([arrays]).traces)
    finally:
        tracemalloc.stop()
    assert kept < 900 * np.dtype(np.int64).itemsize  # bindings keep their inputs, but no mask


@pytest.mark.parametrize("lengths", [(5,), (1, 2), (100, 3, 57, 33, 1, 200)])
def test_batched_prompts_of_any_length_match_the_librarys(
    batch: Batch, reference: Reference, lengths: tuple[int, ...]
) -> None:
    prompts = {number: text(length) for number, length in enumerate(lengths)}
    batch.answer(prompts)
    assert all(reference.agrees(prompt, batch.answers[number], STEPS) for number, prompt in prompts.items())
    batch.end(*prompts)
    assert idle(batch.runner)


def test_sequences_that_join_and_leave_disturb_no_other(batch: Batch, reference: Reference) -> None:
    chance = random.Random(5)
    prompts: dict[int, list[int]] = {}
    running: set[int] = set()
    ended = 0
    for number in range(40):
        if len(running) < SLOTS and chance.random() < 0.7:
            prompts[number] = text(chance.randint(1, 60), number)
            batch.begin(number, prompts[number], chunk=chance.choice((2, 7, 100)))
            running.add(number)
        if running:
            batch.step(*chance.sample(sorted(running), len(running)))
        for sequence in sorted(running):
            if chance.random() < 0.15:
                batch.end(sequence)
                running.remove(sequence)
                ended += 1
    assert ended > 5
    for number, prompt in prompts.items():
        assert reference.agrees(prompt, batch.answers[number], len(batch.answers[number])), number
    batch.end(*running)
    assert idle(batch.runner)


@pytest.mark.parametrize("chunk", [1, 2, 3, 16, 50, 99])
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(runner: Driven, chunk: int) -> None:
    prompt = text(100)
    runner.open(0, prompt, MAX_LENGTH)
    whole = runner.prefill(0, prompt, positions=True).copy()
    runner.open(1, prompt, MAX_LENGTH, reuse=False)
    for start in range(0, 100, chunk):
        found = runner.prefill(1, prompt[start : start + chunk], positions=True)
        assert np.array_equal(found, whole[start : start + chunk]), start
    runner.open(2, prompt, MAX_LENGTH, reuse=False)
    for start in range(0, 100, chunk):  # those of the last position alone
        assert np.array_equal(runner.prefill(2, prompt[start : start + chunk]), whole[start : start + chunk][-1])


def test_a_sequence_may_fill_its_slot_to_the_last_token(session: Any) -> None:
    batch = Batch(Driven(batched_runner(session=session, num_slots=2, max_length=40)))
    batch.answer({sequence: text(30, sequence) for sequence in (1, 2)}, 10)
    assert len(batch.runner.slots.slots[0].tokens) == 39
    batch.step(1)  # next to a full row
    batch.end(1, 2)
    assert batch.begin(3, text(30, 3)) == 0


# reuse of pasts


def test_past_copied_from_a_running_sequence_is_right_for_both(batch: Batch, reference: Reference) -> None:
    common = text(50)
    prompts = {number: [*common, *text(5, number)] for number in range(4)}
    assert [batch.begin(number, prompt) for number, prompt in prompts.items()] == [0, 50, 50, 50]
    for _ in range(STEPS - 1):
        batch.step(*prompts)
    assert all(reference.agrees(prompt, batch.answers[number], STEPS) for number, prompt in prompts.items())


def test_a_conversation_reuses_its_own_answers_bit_for_bit(batch: Batch, reference: Reference) -> None:
    prompt = text(30)
    batch.answer({1: prompt}, 10)
    batch.end(1)
    follow = [*prompt, *batch.answers[1], *text(10, 3)]
    cached = batch.runner.open(2, follow, MAX_LENGTH)
    assert cached == 39
    found = batch.runner.prefill(2, follow[cached:], positions=True).copy()
    batch.runner.open(3, follow, MAX_LENGTH, reuse=False)
    assert np.array_equal(found, batch.runner.prefill(3, follow, positions=True)[cached:])
    batch.answers[2] = [int(found[-1].argmax())]
    for _ in range(STEPS - 1):
        batch.step(2)
    assert reference.agrees(follow, batch.answers[2], STEPS)


def test_one_slot_is_enough_and_keeps_one_past(session: Any, reference: Reference) -> None:
    batch = Batch(Driven(batched_runner(session=session, num_slots=1, max_length=MAX_LENGTH)))
    assert len(batch.runner.slots.slots) == batch.runner.abilities.max_rows == 1
    for number, prompt in enumerate((text(20), text(100))):
        batch.answer({number: prompt}, 4)
        batch.end(number)
        assert reference.agrees(prompt, batch.answers[number], 4)
    assert batch.begin(2, text(20)) == 0


# interruption


def test_interrupted_prefill_can_be_repeated(batch: Batch, reference: Reference) -> None:
    runner, long = batch.runner, text(900)
    batch.answer({1: text(33)}, 2)
    runner.open(2, long, MAX_LENGTH)
    runner.prefill(2, long[:100])
    with interrupts(runner):
        for _ in range(2):  # in a row: the loop decides how often
            with pytest.raises(Interrupted):
                runner.prefill(2, long[100:])
        assert len(runner.slots.of(2).tokens) == 100
    for _ in range(4):
        batch.step(1)
    runner.prefill(2, long[100:500])
    batch.read(2, long[500:])
    for _ in range(4):
        batch.step(1, 2)
    assert reference.agrees(text(33), batch.answers[1], 10)
    assert reference.agrees(long, batch.answers[2], 5)
    batch.end(1, 2)
    assert idle(runner)


def test_a_sequence_may_end_after_its_prefill_was_interrupted(batch: Batch, reference: Reference) -> None:
    long = text(900)
    batch.runner.open(1, long, MAX_LENGTH)
    with interrupts(batch.runner), pytest.raises(Interrupted):
        batch.runner.prefill(1, long)
    batch.end(1)
    assert batch.begin(2, long[:50]) == 0
    batch.step(2)
    assert reference.agrees(long[:50], batch.answers[2], 2)


def test_an_interrupt_before_a_pass_ends_it_unless_it_lapses(batch: Batch, reference: Reference) -> None:
    runner, prompt = batch.runner, text(60)
    runner.open(1, prompt, MAX_LENGTH)
    runner.interrupt()
    with pytest.raises(Interrupted):
        runner.prefill(1, prompt)
    batch.end(1)
    runner.interrupt()
    runner.cancel_interrupt()
    batch.begin(1, prompt)
    assert reference.agrees(prompt, batch.answers[1], 1)
    batch.end(1)


def test_decoding_is_not_interrupted(batch: Batch, reference: Reference) -> None:
    batch.begin(1, text(20))
    with interrupts(batch.runner):
        for _ in range(50):
            batch.step(1)
    assert reference.agrees(text(20), batch.answers[1], 51)


# profiles


def test_lone_pass_of_a_profiled_row_writes_a_file(batch: Batch, reference: Reference, tmp_path: Path) -> None:
    batch.answer({1: text(20), 2: text(30)}, 1)
    batch.runner.set_runtime_option(1, "enable_profiling", str(tmp_path / "one"))
    batch.step(1, 2)
    batch.step(2)
    assert not list(tmp_path.iterdir())
    batch.step(1)
    batch.runner.set_runtime_option(1, "enable_profiling", "0")
    batch.step(1)
    (file,) = tmp_path.iterdir()
    assert any(event.get("cat") == "Node" for event in json.loads(file.read_text()))
    assert reference.agrees(text(20), batch.answers[1], 4)
    batch.runner.set_runtime_option(2, "enable_profiling", str(tmp_path / "other"))
    batch.end(1, 2)
    batch.begin(2, text(30))
    batch.step(2)
    assert len(list(tmp_path.iterdir())) == 1


def test_other_runtime_options_are_refused(runner: Driven) -> None:
    runner.open(1, [5, 6], MAX_LENGTH)
    with pytest.raises(RunnerFailed, match="terminate_session"):
        runner.set_runtime_option(1, "terminate_session", "1")


def test_library_error_is_translated_and_others_continue(batch: Batch, reference: Reference) -> None:
    batch.begin(1, text(20))
    batch.runner.open(2, [5], MAX_LENGTH)
    with pytest.raises(RunnerFailed, match="onnxruntime: "):
        batch.runner.prefill(2, [10**6, 10**6])
    batch.end(2)
    batch.step(1)
    assert reference.agrees(text(20), batch.answers[1], 2)


def test_failed_allocation_is_a_runner_failure(session: Any) -> None:
    def refuse(graph: DecoderGraph, num_rows: int, max_length: int) -> CpuBuffers:
        if max_length >= MAX_LENGTH:
            raise RuntimeError("too little")
        return CpuBuffers(graph, num_rows, max_length)

    with pytest.raises(RunnerFailed, match="too little"):
        batched_runner(session=session, max_length=MAX_LENGTH, make_buffers=refuse)


def test_memory_is_allocated_once_after_that_of_a_trial_is_free(session: Any) -> None:
    made: list[tuple[weakref.ref[CpuBuffers], int, int]] = []

    def make(graph: DecoderGraph, num_rows: int, max_length: int) -> CpuBuffers:
        assert not any(earlier() for earlier, *_ in made)
        buffers = CpuBuffers(graph, num_rows, max_length)
        made.append((weakref.ref(buffers), num_rows, max_length))
        return buffers

    batched_runner(session=session, num_slots=4, max_length=MAX_LENGTH, make_buffers=make)
    assert [sizes for _, *sizes in made[1:]] == [[4, MAX_LENGTH]]


def test_closing_an_unknown_sequence_has_no_effect(runner: Driven) -> None:
    runner.close(5)
    runner.open(5, [1, 2, 3], MAX_LENGTH)
    runner.close(5)
    runner.close(5)
    assert idle(runner)


def test_logits_are_made_for_the_end_of_a_prompt_only(runner: Driven) -> None:
    runner.open(1, text(512), MAX_LENGTH, reuse=False)
    tracemalloc.start()
    try:
        runner.prefill(1, text(512))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 512 * runner.model.vocab_size


# threads, also more than there are heads


@pytest.mark.slow
def test_long_rows_are_alike_in_any_company_and_with_any_number_of_threads() -> None:
    context, found = check_model_directory(DEMO).context_length, list[Logits]()
    for threads in (1, 2, 3, 8):
        session = open_session(read_decoder_graph(DEMO), threads, options=DeviceOptions(entries={SPINNING: "0"}))
        runner = Driven(batched_runner(session=session, num_slots=3, max_length=context))
        for lengths in ((1400, 1400, 1400), (1400,), (1400, 30)):
            rows = range(len(lengths))
            for number, length in enumerate(lengths):
                runner.open(number, text(length, number), length + 2, reuse=False)
                runner.prefill(number, text(length, number))
            found.append(np.stack([runner.decode(rows, [10 + step] * len(lengths))[0].copy() for step in range(2)]))
            for number in rows:
                runner.close(number)
    assert all(np.array_equal(logits, found[0]) for logits in found)


# keys and values of 16 and of 8 bits


@pytest.fixture(scope="module", params=[np.float16, np.int8])
def narrowed(request: pytest.FixtureRequest) -> Driven:
    narrow = replace(read_decoder_graph(DEMO), cache_type=request.param)
    return Driven(batched_runner(graph=narrow, num_slots=SLOTS, max_length=MAX_LENGTH))


def test_keys_and_values_of_fewer_bits_hardly_change_logits(runner: Driven, narrowed: Driven) -> None:
    found = []
    for each in (runner, narrowed):
        each.open(1, text(200), MAX_LENGTH, reuse=False)
        found.append(each.prefill(1, text(200), positions=True).copy())
        each.close(1)
    whole, narrow = found
    assert not np.array_equal(whole, narrow)
    # The library's own graph, read token by token, differs from one read at once by as much: activations have 8 bits.
    assert np.sqrt(np.square(whole - narrow).mean()) < 0.05 * whole.std()
    assert np.mean(whole.argmax(1) == narrow.argmax(1)) > 0.95
