"""The batched runner on the demo model: its answers are those of the library's own Generator, token for token.

The demo model's weights are quantized in blocks of 32, for which ONNX Runtime's kernels give the same bits for one row
as for many; so everything here is compared exactly.
"""

import random
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph import DecoderGraph, read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners import trials
from genai_server.engine.runners.base import Interrupted, Opening
from genai_server.engine.runners.batched import BatchedRunner, BatchLimits
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.decoder_session import DecoderSession
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scores import Logits
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.errors import RunnerFailed
from genai_server.generation import GenerationRequest
from genai_server.options.device import DeviceOptions
from genai_server.options.session import SPINNING
from scripts._models.requantized import write_requantized
from tests.running_server import DEMO
from tests.tokens import text

MAX_LENGTH = 1024
SLOTS = 6
STEPS = 16

Reference = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def graph() -> DecoderGraph:
    return read_decoder_graph(DEMO)


@pytest.fixture
def runner(graph: DecoderGraph, session: Any) -> BatchedRunner:
    return BatchedRunner(graph, session, check_model_directory(DEMO), BatchLimits(SLOTS, MAX_LENGTH))


@pytest.fixture(scope="module")
def reference() -> Reference:
    """What a fresh Generator of the library answers greedily, the prompt read in one piece."""
    import onnxruntime_genai as og

    model, vocab_size = og.Model(str(DEMO)), check_model_directory(DEMO).vocab_size
    known: dict[tuple[int, ...], list[int]] = {}

    def answer(prompt: list[int], steps: int) -> list[int]:
        found = known.get(tuple(prompt), [])
        if len(found) < steps:
            parameters = og.GeneratorParams(model)
            parameters.set_search_options(max_length=MAX_LENGTH, do_sample=False)
            generator = og.Generator(model, parameters)
            found, unread = [], prompt
            while len(found) < steps:  # not by generate_next_token, which ends at an end token
                generator.append_tokens(np.array(unread, np.int32))
                unread = [int(generator.get_logits().reshape(-1, vocab_size)[-1].argmax())]
                found += unread
            known[tuple(prompt)] = found
        return found[:steps]

    return answer


class Batch:
    """Sequences on a runner, answered greedily."""

    def __init__(self, runner: BatchedRunner) -> None:
        self.runner = runner
        self.answers: dict[int, list[int]] = {}

    def begin(self, sequence: int, prompt: list[int], *, chunk: int = MAX_LENGTH, **how: Any) -> int:
        """Read a prompt up to its first token of answer; returns how much of it needed no reading."""
        cached = self.runner.open(sequence, prompt, Opening(MAX_LENGTH, **how))
        self.read(sequence, prompt[cached:], chunk=chunk)
        return cached

    def read(self, sequence: int, tokens: list[int], *, chunk: int = MAX_LENGTH) -> None:
        for start in range(0, len(tokens), chunk):
            logits = self.runner.prefill(sequence, tokens[start : start + chunk])
        self.answers[sequence] = [int(logits.argmax())]

    def step(self, *sequences: int) -> None:
        """One more token of each, in one pass."""
        logits = self.runner.decode(sequences, [self.answers[sequence][-1] for sequence in sequences])
        assert logits.shape == (len(sequences), self.runner.model.vocab_size)
        for sequence, row in zip(sequences, logits, strict=True):
            self.answers[sequence].append(int(row.argmax()))

    def end(self, *sequences: int) -> None:
        for sequence in sequences:
            self.runner.close(sequence)


@pytest.fixture
def batch(runner: BatchedRunner) -> Batch:
    return Batch(runner)


def idle(runner: BatchedRunner) -> bool:
    return runner.slots.num_running == runner.slots.num_decoding == 0


# batches


def test_batches_of_every_size_leave_no_memory_taken(batch: Batch) -> None:
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
    assert kept < 900


def test_its_facts(runner: BatchedRunner) -> None:
    assert runner.max_rows == SLOTS
    assert runner.model == check_model_directory(DEMO)
    assert runner.lone_row_is_exact
    assert idle(runner)
    assert [slot.tokens for slot in runner.slots.slots] == [[]] * SLOTS


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("lengths", [(5,), (1, 2), (100, 3, 57, 33, 1, 200)])
def test_prompts_of_any_length_in_one_batch_get_the_librarys_answers(
    batch: Batch, reference: Reference, lengths: tuple[int, ...], exact: bool
) -> None:
    prompts = {number: text(length) for number, length in enumerate(lengths)}
    for number, prompt in prompts.items():
        batch.begin(number, prompt, exact=exact)
    for _ in range(STEPS - 1):
        batch.step(*prompts)
    assert batch.answers == {number: reference(prompt, STEPS) for number, prompt in prompts.items()}
    batch.end(*prompts)
    assert idle(batch.runner)


def test_the_rows_come_in_the_order_that_was_asked_for(batch: Batch, reference: Reference) -> None:
    prompts = {number: text(10 + number) for number in range(4)}
    for number, prompt in prompts.items():
        batch.begin(number, prompt)
    for order in ((2, 0, 3, 1), (3, 2, 1, 0), (0, 1, 2, 3)):
        batch.step(*order)
    assert batch.answers == {number: reference(prompt, 4) for number, prompt in prompts.items()}


def test_one_that_is_left_out_of_a_pass_goes_on_later_as_if_nothing_had_been(
    batch: Batch, reference: Reference
) -> None:
    prompts = {number: text(20, number) for number in range(3)}
    for number, prompt in prompts.items():
        batch.begin(number, prompt)
    for asked in ((0, 1, 2), (0, 2), (2,), (1,), (0, 1)):
        batch.step(*asked)
    for number, prompt in prompts.items():
        assert batch.answers[number] == reference(prompt, len(batch.answers[number]))


@pytest.mark.parametrize("exact", [False, True])
def test_sequences_that_join_and_leave_disturb_no_other(batch: Batch, reference: Reference, exact: bool) -> None:
    chance = random.Random(5)
    prompts: dict[int, list[int]] = {}
    running: set[int] = set()
    ended = 0
    for number in range(40):
        if len(running) < SLOTS and chance.random() < 0.7:
            prompts[number] = text(chance.randint(1, 60), number)
            batch.begin(number, prompts[number], chunk=chance.choice((2, 7, 100)), exact=exact)
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
        assert batch.answers[number] == reference(prompt, len(batch.answers[number])), number
    batch.end(*running)
    assert idle(batch.runner)


def test_a_prompt_is_read_in_chunks_while_others_decode(batch: Batch, reference: Reference) -> None:
    batch.begin(1, text(30))
    long = text(100)
    batch.runner.open(2, long, Opening(MAX_LENGTH))
    for start in range(0, 100, 20):
        logits = batch.runner.prefill(2, long[start : start + 20])
        batch.step(1)
    batch.answers[2] = [int(logits.argmax())]
    for _ in range(5):
        batch.step(1, 2)
    assert batch.answers[2] == reference(long, 6)
    assert batch.answers[1] == reference(text(30), 11)


@pytest.mark.parametrize("chunk", [2, 3, 16, 50, 99])
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(runner: BatchedRunner, chunk: int) -> None:
    prompt = text(100)
    runner.open(0, prompt, Opening(MAX_LENGTH))
    whole = runner.prefill(0, prompt).copy()
    runner.open(1, prompt, Opening(MAX_LENGTH, reuse=False))
    for start in range(0, 100, chunk):
        logits = runner.prefill(1, prompt[start : start + chunk])
    if 100 % chunk != 1:  # one token alone may be read by another kernel; the scheduler never asks for it
        assert np.array_equal(logits, whole)
    assert int(logits.argmax()) == int(whole.argmax())


@pytest.mark.parametrize("length", [65, 129, 130, 257, 385])
def test_however_the_scheduler_divides_a_prompt_the_bits_are_the_same(runner: BatchedRunner, length: int) -> None:
    request = GenerationRequest("r", text(length), 9, MAX_LENGTH)
    found = []
    for most in (16, 64, 100, 512):
        scheduler = Scheduler(max_running=1, max_waiting=1, prefill_chunk=most)
        sequence = Scheduled(0, (0, 0), request, lambda: 0.0)
        scheduler.add(sequence)
        scheduler.admit()
        runner.open(0, sequence.tokens, Opening(MAX_LENGTH, reuse=False))
        while sequence.num_unread:
            step = scheduler.next_step()
            assert step is not None
            end = sequence.num_read + step.num_tokens
            logits = runner.prefill(0, sequence.tokens[sequence.num_read : end])
            sequence.num_read = end
        found.append(logits.copy())
        runner.close(0)
    assert all(np.array_equal(logits, found[0]) for logits in found)


def test_a_sequence_may_fill_its_slot_to_the_last_token(graph: DecoderGraph, session: Any) -> None:
    batch = Batch(BatchedRunner(graph, session, check_model_directory(DEMO), BatchLimits(2, 40)))
    for sequence in (1, 2):
        batch.begin(sequence, text(30, sequence))
    for _ in range(9):
        batch.step(1, 2)
    assert len(batch.runner.slots.slots[0].tokens) == 39
    batch.step(1)  # beside a full row
    batch.end(1, 2)
    assert batch.begin(3, text(30, 3)) == 0


# a past that is used again


@pytest.mark.parametrize("exact", [False, True])
def test_a_past_that_is_taken_over_gives_the_same_answer(batch: Batch, reference: Reference, exact: bool) -> None:
    prompt = text(60)
    batch.begin(1, prompt, exact=exact)
    batch.end(1)
    longer = [*prompt, *text(20, 9)]
    batch.begin(3, text(12))
    assert batch.begin(2, longer, exact=exact) == 60
    for _ in range(STEPS - 1):
        batch.step(2, 3)
    assert batch.answers[2] == reference(longer, STEPS)
    assert batch.answers[3] == reference(text(12), STEPS)


@pytest.mark.parametrize("exact", [False, True])
def test_a_past_that_is_copied_from_a_running_sequence_gives_both_their_answers(
    batch: Batch, reference: Reference, exact: bool
) -> None:
    common = text(50)
    prompts = {number: [*common, *text(5, number)] for number in range(4)}
    assert [batch.begin(number, prompt, exact=exact) for number, prompt in prompts.items()] == [0, 50, 50, 50]
    for _ in range(STEPS - 1):
        batch.step(*prompts)
    assert batch.answers == {number: reference(prompt, STEPS) for number, prompt in prompts.items()}


def test_the_same_prompt_again_gives_the_same_answer_and_reads_two_tokens(batch: Batch, reference: Reference) -> None:
    prompt = text(40)
    assert [batch.begin(number, prompt) for number in range(3)] == [0, 38, 38]
    for _ in range(5):
        batch.step(0, 1, 2)
    assert batch.answers == dict.fromkeys(range(3), reference(prompt, 6))


def test_an_exact_conversation_reads_its_own_answers_anew(batch: Batch, reference: Reference) -> None:
    prompt = text(30)
    batch.begin(1, prompt, exact=True)
    for _ in range(9):
        batch.step(1)
    batch.end(1)
    follow = [*prompt, *batch.answers[1], *text(10, 3)]
    assert batch.begin(2, follow, exact=True) == 30
    for _ in range(STEPS - 1):
        batch.step(2)
    assert batch.answers[2] == reference(follow, STEPS)
    batch.end(2)
    # Whoever does not ask for exactness takes what is there.
    assert batch.begin(3, [*follow, *text(4)]) > 38


@pytest.mark.parametrize("alone", [range(1), range(10, 30)])
def test_what_was_read_token_by_token_is_no_past_for_an_exact_answer(runner: BatchedRunner, alone: range) -> None:
    prompt = text(30)
    runner.open(1, prompt, Opening(MAX_LENGTH))
    if alone.start:
        runner.prefill(1, prompt[: alone.start])
    for index in alone:
        runner.prefill(1, prompt[index : index + 1])
    runner.close(1)
    follow = [*prompt[: alone.stop], *text(9, 1)]
    assert runner.open(2, follow, Opening(MAX_LENGTH, exact=True)) == alone.start
    runner.close(2)
    assert runner.open(3, follow, Opening(MAX_LENGTH)) == alone.stop


def test_without_reuse_all_is_read(batch: Batch, reference: Reference) -> None:
    batch.begin(1, text(40))
    assert batch.begin(2, text(40), reuse=False) == 0
    batch.step(1, 2)
    assert batch.answers[1] == batch.answers[2] == reference(text(40), 2)


def test_where_a_lone_row_rounds_otherwise_an_exact_one_gets_a_companion_that_harms_nobody(
    batch: Batch, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch.runner.slots.row_group = 2
    rows: list[int] = []
    bind_step = DecoderSession.bind_step

    def counted(session: DecoderSession, ids: Any, *given: Any) -> Any:
        rows.append(len(ids))
        return bind_step(session, ids, *given)

    monkeypatch.setattr(DecoderSession, "bind_step", counted)
    batch.begin(1, text(70))
    batch.end(1)
    waiting = text(50, 7)
    batch.begin(2, text(20), exact=True)
    batch.runner.open(3, waiting, Opening(MAX_LENGTH))
    batch.runner.prefill(3, waiting[:25])
    rows.clear()
    for _ in range(4):
        batch.step(2)
    assert rows == [2] * 4
    batch.read(3, waiting[25:])
    batch.end(2)
    rows.clear()
    for _ in range(3):
        batch.step(3)
    assert rows == [3, 1, 1]  # then its row is moved to the front
    assert batch.answers[2] == reference(text(20), 5)
    assert batch.answers[3] == reference(waiting, 4)
    # The past that lay idle beside them is what it was.
    assert batch.begin(4, [*text(70), *text(3)]) == 70
    batch.step(4)
    assert batch.answers[4] == reference([*text(70), *text(3)], 2)


@pytest.mark.parametrize("row_group", [1, 2, 4])
def test_one_slot_is_enough_and_keeps_one_past(
    graph: DecoderGraph, session: Any, reference: Reference, monkeypatch: pytest.MonkeyPatch, row_group: int
) -> None:
    monkeypatch.setattr("genai_server.engine.runners.trials.smallest_row_group", lambda *_: row_group)
    batch = Batch(BatchedRunner(graph, session, check_model_directory(DEMO), BatchLimits(1, MAX_LENGTH)))
    assert len(batch.runner.slots.slots) == batch.runner.max_rows == 1
    for number, prompt in enumerate((text(40), text(30))):
        batch.begin(number, prompt, exact=True)
        for _ in range(STEPS - 1):
            batch.step(number)
        batch.end(number)
        assert batch.answers[number] == reference(prompt, STEPS)
    assert batch.begin(2, text(40)) == 0


# rows that round in groups


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> BatchedRunner:
    """With a model whose kernels may take rows in groups; on x86-64 they take pairs."""
    model_dir = write_requantized(DEMO, tmp_path_factory.mktemp("models") / "requantized")
    graph, model = read_decoder_graph(model_dir), check_model_directory(model_dir)
    return BatchedRunner(graph, open_session(graph, 1, optimized=False), model, BatchLimits(5, 200))


def exact_logits(runner: BatchedRunner, lengths: Sequence[int], steps: int = 4, **how: Any) -> list[list[Logits]]:
    """Of each step of prompts of these lengths, in one batch."""
    for number, length in enumerate(lengths):
        prompt = text(length, number)
        cached = runner.open(number, prompt, Opening(length + steps, exact=True, **how))
        runner.prefill(number, prompt[cached:])
    numbers = range(len(lengths))
    found = [list(runner.decode(numbers, [10 + step] * len(lengths)).copy()) for step in range(steps)]
    for number in numbers:
        runner.close(number)
    return found


def test_exact_rows_are_the_same_beside_any_number_of_others(grouped: BatchedRunner) -> None:
    lengths = (12, 7, 31, 20, 9)
    together = exact_logits(grouped, lengths, reuse=False)
    for number in range(1, 5):
        for step, rows in enumerate(exact_logits(grouped, lengths[:number], reuse=False)):
            assert np.array_equal(rows, together[step][:number]), number


@pytest.mark.parametrize("common", [29, 30])
@pytest.mark.parametrize("behind", [8, 9])
def test_an_exact_row_is_the_same_after_a_past_of_any_length(grouped: BatchedRunner, common: int, behind: int) -> None:
    length = common + behind
    grouped.slots.forget()
    (expected,) = zip(*exact_logits(grouped, [length]), strict=True)
    grouped.slots.forget()
    prompt = [*text(length, 0)[:common], *text(5, 9)]
    grouped.open(9, prompt, Opening(200))
    grouped.prefill(9, prompt)
    grouped.close(9)
    (found,) = zip(*exact_logits(grouped, [length]), strict=True)
    assert np.array_equal(found, expected)


# interruption


def interrupting(runner: BatchedRunner) -> tuple[threading.Thread, threading.Event]:
    """A thread that interrupts again and again until it is told to stop."""
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.001):
            runner.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread, stop


def test_a_prefill_is_interrupted_by_another_thread_and_can_be_given_again(batch: Batch, reference: Reference) -> None:
    runner = batch.runner
    long = text(900)
    batch.begin(1, text(33))
    batch.step(1)
    runner.open(2, long, Opening(MAX_LENGTH))
    first = runner.prefill(2, long[:100]).copy()
    thread, stop = interrupting(runner)
    try:
        with pytest.raises(Interrupted):
            runner.prefill(2, long[100:])
        assert len(runner.slots.slots[runner.slots.index(2)].tokens) == 100
        # Not twice in a row, however often somebody tries: else a prompt might never be read.
        runner.prefill(2, long[100:500])
        with pytest.raises(Interrupted):
            runner.prefill(2, long[500:])
    finally:
        stop.set()
        thread.join()
    for _ in range(4):
        batch.step(1)
    batch.read(2, long[500:])
    for _ in range(4):
        batch.step(1, 2)
    assert first.shape == (runner.model.vocab_size,)
    assert batch.answers[1] == reference(text(33), 10)
    assert batch.answers[2] == reference(long, 5)
    batch.end(1, 2)
    assert idle(runner)


def test_a_prompt_is_read_beside_a_stream_however_often_somebody_interrupts(batch: Batch) -> None:
    runner = batch.runner
    long = text(900)
    batch.begin(1, text(33))
    runner.open(2, long, Opening(MAX_LENGTH))
    thread, stop = interrupting(runner)
    try:
        with pytest.raises(Interrupted):
            runner.prefill(2, long)
        batch.step(1)
        runner.prefill(2, long)
    finally:
        stop.set()
        thread.join()


def test_a_sequence_may_end_after_its_prefill_was_interrupted(batch: Batch, reference: Reference) -> None:
    long = text(900)
    batch.runner.open(1, long, Opening(MAX_LENGTH))
    thread, stop = interrupting(batch.runner)
    try:
        with pytest.raises(Interrupted):
            batch.runner.prefill(1, long)
    finally:
        stop.set()
        thread.join()
    batch.end(1)
    assert batch.begin(2, long[:50]) == 0
    batch.step(2)
    assert batch.answers[2] == reference(long[:50], 2)


def test_decoding_is_not_interrupted_and_what_comes_too_late_is_nothing(batch: Batch, reference: Reference) -> None:
    batch.begin(1, text(20))
    thread, stop = interrupting(batch.runner)
    try:
        for _ in range(50):
            batch.step(1)
    finally:
        stop.set()
        thread.join()
    batch.runner.interrupt()
    batch.begin(2, text(60))
    assert batch.answers[1] == reference(text(20), 51)
    assert batch.answers[2] == reference(text(60), 1)


# from and to other runners


@pytest.mark.parametrize("decoded", [0, 6])
def test_a_generators_past_is_gone_on_from_with_the_same_tokens(
    batch: Batch, reference: Reference, decoded: int
) -> None:
    generator = OgGeneratorRunner(DEMO, "cpu", threads=1)
    prompt = text(45)
    generator.open(7, prompt, Opening(MAX_LENGTH))
    answer = [int(generator.prefill(7, prompt).argmax())]
    for _ in range(decoded):
        answer.append(int(generator.decode([7], answer[-1:]).argmax()))
    past = generator.export(7, batch.runner.present_names)
    generator.close(7)
    batch.begin(1, text(12))
    batch.runner.adopt(2, [*prompt, *answer[:-1]], len(prompt), past)
    batch.answers[2] = answer
    for _ in range(5):
        batch.step(2, 1)
    assert batch.answers[2] == reference(prompt, decoded + 6)
    assert batch.answers[1] == reference(text(12), 6)
    batch.end(1, 2)
    # What the generator has decoded does not count as prefilled.
    assert batch.runner.open(3, [*prompt, *answer, 5, 5], Opening(MAX_LENGTH, exact=True)) == len(prompt)
    batch.end(3)
    assert idle(batch.runner)


def test_runtime_options_are_refused(runner: BatchedRunner) -> None:
    runner.open(1, [5, 6], Opening(MAX_LENGTH))
    with pytest.raises(RunnerFailed, match="enable_profiling"):
        runner.set_runtime_option(1, "enable_profiling", "1")


def test_what_the_library_refuses_is_translated_and_the_others_go_on(batch: Batch, reference: Reference) -> None:
    batch.begin(1, text(20))
    batch.runner.open(2, [5], Opening(MAX_LENGTH))
    with pytest.raises(RunnerFailed, match="onnxruntime: "):
        batch.runner.prefill(2, [10**6, 10**6])
    batch.end(2)
    batch.step(1)
    assert batch.answers[1] == reference(text(20), 2)


def test_memory_that_cannot_be_had_is_the_runners_failure(graph: DecoderGraph, session: Any) -> None:
    def refuse(graph: DecoderGraph, num_rows: int, max_length: int) -> CpuBuffers:
        if max_length >= MAX_LENGTH:
            raise RuntimeError("too little")
        return CpuBuffers(graph, num_rows, max_length)

    model = check_model_directory(DEMO)
    with pytest.raises(RunnerFailed, match="too little"):
        BatchedRunner(graph, session, model, BatchLimits(1, MAX_LENGTH), make_buffers=refuse)


def test_the_memory_of_each_trial_is_free_before_the_next_is_taken(graph: DecoderGraph, session: Any) -> None:
    made: list[weakref.ref[CpuBuffers]] = []

    def make(graph: DecoderGraph, num_rows: int, max_length: int) -> CpuBuffers:
        assert not any(earlier() for earlier in made)
        buffers = CpuBuffers(graph, num_rows, max_length)
        made.append(weakref.ref(buffers))
        return buffers

    BatchedRunner(graph, session, check_model_directory(DEMO), BatchLimits(2, MAX_LENGTH), make_buffers=make)
    assert len(made) == 3


def test_closing_what_is_not_open_is_nothing(runner: BatchedRunner) -> None:
    runner.close(5)
    runner.open(5, [1, 2, 3], Opening(MAX_LENGTH))
    runner.close(5)
    runner.close(5)
    assert idle(runner)


def test_on_demand_a_prompt_gives_the_logits_after_each_of_its_tokens(runner: BatchedRunner) -> None:
    prompt = text(50)
    runner.open(0, prompt, Opening(MAX_LENGTH, reuse=False))
    positions = runner.prefill(0, prompt, positions=True)
    assert positions.shape == (len(prompt), runner.model.vocab_size)
    for length in (2, 20, 50):
        runner.open(1, prompt, Opening(MAX_LENGTH, reuse=False))
        assert runner.prefill(1, prompt[:length]) == pytest.approx(positions[length - 1], abs=1e-3)
        runner.close(1)


@pytest.mark.parametrize("length", [1, 2, 17, 128])
def test_a_prompt_has_the_same_logits_whether_the_head_reads_all_of_it_or_its_end(
    runner: BatchedRunner, length: int
) -> None:
    prompt = text(length)
    found = []
    for positions in (True, False):
        runner.open(1, prompt, Opening(MAX_LENGTH, reuse=False))
        found.append(runner.prefill(1, prompt, positions=positions))
        runner.close(1)
    every, last = found
    assert every.shape == (length, runner.model.vocab_size)
    assert np.array_equal(last, every[-1])


def test_logits_are_made_for_the_end_of_a_prompt_only(runner: BatchedRunner) -> None:
    prompt = text(512)
    runner.open(1, prompt, Opening(MAX_LENGTH, reuse=False))
    tracemalloc.start()
    try:
        runner.prefill(1, prompt)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 512 * runner.model.vocab_size


# more threads than heads


def test_long_exact_rows_are_the_same_alone_and_in_company_with_more_threads_than_heads(
    graph: DecoderGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Attention then splits a long row's keys among threads, unless a row of another length is in the pass.
    options = DeviceOptions(entries={SPINNING: "0"})
    session, model = open_session(graph, 6, optimized=False, options=options), check_model_directory(DEMO)
    runner = BatchedRunner(graph, session, model, BatchLimits(3, model.context_length))
    monkeypatch.setattr(trials, "splits_even_rows", lambda *_: False)
    unpadded = BatchedRunner(graph, session, model, BatchLimits(3, model.context_length))

    def are_alike(runner: BatchedRunner) -> bool:
        together = exact_logits(runner, (1400, 1400, 1400), steps=2, reuse=False)
        for lengths in ((1400,), (1400, 1400), (1400, 30)):
            found = exact_logits(runner, lengths, steps=2, reuse=False)
            if not all(np.array_equal(rows[0], together[step][0]) for step, rows in enumerate(found)):
                return False
        return True

    assert are_alike(runner)
    if are_alike(unpadded):
        pytest.skip("this machine's attention computes long rows alike without a padding row")
    assert not runner.lone_row_is_exact
