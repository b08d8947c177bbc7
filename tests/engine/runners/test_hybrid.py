"""Models with layers that keep states of fixed size, in the batch: LFM2's convolutions, Qwen 3.5's linear attention.

The models are those of the real builder (tests/built_models/README.md). Each answer must be that of a Generator.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from _models.driven import Driven

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners.base import Interrupted, open_bare
from genai_server.engine.runners.batched import BatchedRunner, DecoderSession
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.errors import RunnerFailed
from tests.engine.hybrids import BUILT, LENGTH, PADDING, SLOTS, STEPS, VOCAB, Hybrid, best, finish, text
from tests.stepped_loop import SteppedLoop


def test_rows_of_any_lengths_decode_together(hybrid: Hybrid, runner: Driven) -> None:
    prompts = [text(length) for length in (1, 5, 100, 31, 17)]
    found: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        runner.open(number, prompt, LENGTH)
        found.append([best(runner.prefill(number, prompt))])
    while len(found[0]) < STEPS:
        for tokens, logits in zip(found, runner.decode(range(SLOTS), [t[-1] for t in found]), strict=True):
            tokens.append(best(logits))
    assert found == [hybrid.answer(prompt) for prompt in prompts]


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_prompt_is_read_in_chunks_next_to_decoding_rows(hybrid: Hybrid, runner: Driven, chunk: int) -> None:
    streams = [text(20, 1), text(9, 2)]
    answers = [hybrid.answer(prompt) for prompt in streams]
    late = text(80, 3)
    for number, prompt in zip((0, 2), streams, strict=True):
        runner.open(number, prompt, LENGTH)
        runner.prefill(number, prompt)
    runner.open(1, late, LENGTH, reuse=False)  # its slot is the last of the three
    for start in range(0, len(late), chunk):
        step = min(start // chunk, STEPS - 2)
        decoding = [(number, [answers[place][step]], True) for place, number in enumerate((0, 2))]
        chunks = [*decoding, (1, late[start : start + chunk], False)]
        *scores, last = runner.read(*(chunks if start // chunk < STEPS - 1 else chunks[2:]))
        for answer, score in zip(answers, scores, strict=False):
            assert best(score.logits) == answer[step + 1]
    assert finish(runner, 1, best(last.logits)) == hybrid.answer(late)


def test_the_token_for_padding_is_read_like_any_other(hybrid: Hybrid, runner: Driven) -> None:
    for place in (0, 5, 18):
        prompt = text(19, 8)
        prompt[place] = PADDING
        runner.open(place, prompt, LENGTH, reuse=False)
        assert finish(runner, place, best(runner.prefill(place, prompt))) == hybrid.answer(prompt)


def test_idle_rows_between_others_keep_their_states(hybrid: Hybrid, runner: Driven) -> None:
    prompts = [text(length, 5) for length in (9, 30, 17)]
    firsts = []
    for number, prompt in enumerate(prompts):
        runner.open(number, prompt, LENGTH)
        firsts.append(best(runner.prefill(number, prompt)))
    for step in range(STEPS - 1):
        runner.decode([0, 2], [hybrid.answer(prompts[number])[step] for number in (0, 2)])
    assert finish(runner, 1, firsts[1]) == hybrid.answer(prompts[1])


def test_a_slot_that_was_cancelled_gives_nothing_to_the_next(hybrid: Hybrid, runner: Driven) -> None:
    for number in range(3 * SLOTS):
        prompt = text(20 + number, 6)
        assert runner.open(number, prompt, LENGTH) == 0
        first = best(runner.prefill(number, prompt))
        if number % 3:
            runner.close(number)
        else:
            assert finish(runner, number, first) == hybrid.answer(prompt)


def test_rows_are_bitwise_equal_in_any_company_in_any_chunks(packed_hybrid: Hybrid) -> None:
    prompt, found = text(40, 7), []
    for threads in (1, 3):
        runner = packed_hybrid.load(threads=threads)
        for others, chunk in ((0, 40), (1, 1), (3, 7), (4, 17)):
            for number in range(1, others + 1):
                runner.open(number, text(10 * number, 8), LENGTH, reuse=False)
                runner.prefill(number, text(10 * number, 8))
            runner.open(0, prompt, LENGTH, reuse=False)
            rows = []
            for start in range(0, len(prompt), chunk):
                company = [(number, [6], True) for number in range(1, others + 1)]
                *_, last = runner.read(*company, (0, prompt[start : start + chunk], False))
            rows.append(last.logits[-1].copy())
            for _ in range(3):
                running = range(others + 1)
                rows.append(runner.decode(running, [5] * len(running))[0].copy())
            for number in range(others + 1):
                runner.close(number)
            found.append(np.stack(rows))
    assert all(np.array_equal(rows, found[0]) for rows in found)


def _read_again(runner: Driven, sequence: int, chunk: list[int], spares: threading.Event) -> int:
    """Read a chunk without an interrupt; one that was on its way may still come."""
    spares.set()
    try:
        while True:
            with suppress(Interrupted):
                return best(runner.prefill(sequence, chunk))
    finally:
        spares.clear()


def test_an_interrupted_chunk_can_be_read_again(hybrid: Hybrid, runner: Driven) -> None:
    prompt, num_interrupts = text(200, 9), 0
    stop, spares = threading.Event(), threading.Event()

    def interrupt() -> None:
        while not stop.is_set():
            if not spares.is_set():
                runner.interrupt()

    thread = threading.Thread(target=interrupt, daemon=True)
    try:
        thread.start()
        for number in range(1000):  # the chunks are so short that the first ones may escape
            if num_interrupts >= 2:
                break
            runner.open(number, prompt, LENGTH, reuse=False)
            for chunk in (prompt[:50], prompt[50:]):
                try:
                    first = best(runner.prefill(number, chunk))
                except Interrupted:
                    num_interrupts += 1
                    first = _read_again(runner, number, chunk, spares)
            assert finish(runner, number, first, 4) == hybrid.answer(prompt)[:4]
    finally:
        stop.set()
    assert num_interrupts


def test_a_failed_pass_leaves_no_prefix(hybrid: Hybrid, runner: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = text(30, 10)
    runner.open(0, prompt, LENGTH)
    runner.prefill(0, prompt)

    def fail(*_: object, **__: object) -> None:
        raise RunnerFailed("broken")

    with monkeypatch.context() as patched:
        patched.setattr(DecoderSession, "run", fail)
        with pytest.raises(RunnerFailed):
            runner.decode([0], [5])
    runner.close(0)
    assert runner.open(1, [*prompt, 5, 6, 7], LENGTH) == 0


def test_packed_weights_and_settings_choose_the_batch(hybrid: Hybrid, tmp_path: Path) -> None:
    loaded = load_model(msgspec.structs.replace(hybrid.spec, cache_dir=str(tmp_path)))
    assert loaded.batch is not None, loaded.batching.reason
    prompt = text(30, 11)
    runner = Driven(loaded.main)
    runner.open(0, prompt, LENGTH)
    assert finish(runner, 0, best(runner.prefill(0, prompt))) == hybrid.answer(prompt)


# Cached prefixes.


class Scheduled:
    """Reads prompts in the chunks that a scheduler would ask for, and counts the tokens."""

    def __init__(self, runner: Driven, chunk: int = 512) -> None:
        self.num_read = 0
        assert isinstance(runner.runner, BatchedRunner)
        self._runner = runner.runner
        self._chunk = chunk
        self._numbers = iter(range(1000))

    def ask(self, prompt: list[int], num_tokens: int = STEPS) -> list[int]:
        """The greedy answer."""
        number = next(self._numbers)
        sequence = open_bare(self._runner, prompt, LENGTH, id=number, reuses_past=True)
        while len(sequence.tokens) - len(prompt) < num_tokens:
            decodes = sequence.is_decoding
            chunk = 1 if decodes else self._runner.fit_chunk(sequence, self._chunk)
            self.num_read += 0 if decodes else chunk
            read = ScheduledChunk.next(sequence, chunk)
            [scores] = self._runner.forward([read])
            read.count()
            if not sequence.num_unread:
                sequence.append(best(scores.logits[-1]))
        self._runner.close(number)
        return sequence.tokens[len(prompt) :]


@pytest.fixture
def scheduled(runner: Driven) -> Iterator[Scheduled]:
    yield Scheduled(runner)


def test_twenty_turns_read_only_their_new_tokens(hybrid: Hybrid, scheduled: Scheduled) -> None:
    conversation = text(40, 20)
    num_new, num_tokens = len(conversation), 5
    for turn in range(20):
        answer = scheduled.ask(conversation, num_tokens)
        assert answer == hybrid.answer(conversation)[:num_tokens]
        new = text(5, 21 + turn)
        num_new += len(new) + 1  # the last token of an answer is read with the next turn
        conversation = [*conversation, *answer, *new]
    assert scheduled.num_read <= num_new


def test_short_turns_without_the_prompts_end_are_read_once(hybrid: Hybrid, scheduled: Scheduled) -> None:
    conversation, num_new = text(40, 20), 40
    for turn in range(6):
        before = scheduled.num_read
        opening = text(4, 40 + turn)  # the next prompt lacks these tokens
        answer = scheduled.ask([*conversation, *opening], 3)
        assert answer == hybrid.answer([*conversation, *opening])[:3]
        assert scheduled.num_read - before <= num_new + len(opening) + 9
        new = [*answer, *text(28, 50 + turn)]
        num_new = len(new)
        conversation += new


def test_an_edited_end_is_read_from_the_checkpoint_before_it(hybrid: Hybrid, scheduled: Scheduled) -> None:
    prompt = text(100, 30)
    assert scheduled.ask(prompt) == hybrid.answer(prompt)
    edited = [*prompt[:-4], *text(6, 31)]
    before = scheduled.num_read
    assert scheduled.ask(edited) == hybrid.answer(edited)
    assert scheduled.num_read - before < 20
    before = scheduled.num_read
    assert scheduled.ask(prompt) == hybrid.answer(prompt)
    assert scheduled.num_read - before < 20


@pytest.mark.parametrize("end", [0, 4])
def test_an_answer_without_its_reasoning_is_read_alone(hybrid: Hybrid, scheduled: Scheduled, end: int) -> None:
    prompt = text(100, 32)
    answer = scheduled.ask(prompt)
    # Templates may leave out the prompt's last tokens, too: those that begin the reasoning.
    following = [*prompt[: len(prompt) - end], *answer[-3:], *text(10, 33)]
    before = scheduled.num_read
    assert scheduled.ask(following) == hybrid.answer(following)
    assert scheduled.num_read - before <= 13 + (13 if end else 0)


def test_a_common_beginning_is_read_twice_and_then_copied(hybrid: Hybrid, scheduled: Scheduled) -> None:
    common = text(120, 40)
    for number in range(4):
        prompt = [*common, *text(30, 41 + number)]
        before = scheduled.num_read
        assert scheduled.ask(prompt) == hybrid.answer(prompt)
        # The second one shows how far prompts are alike, and leaves a checkpoint there.
        assert scheduled.num_read - before == len(prompt) - (120 if number > 1 else 0)


def test_a_reused_prefix_leaves_every_bit_as_it_was(packed_hybrid: Hybrid) -> None:
    """States are those behind a checkpoint, or behind an answer."""
    runner = packed_hybrid.load()
    scheduled, prompt = Scheduled(runner), text(100, 50)
    answer = scheduled.ask(prompt)
    for follow in ([*prompt, *answer, *text(5, 51)], [*prompt[:-3], *text(8, 52)]):
        found = []
        for reuses in (True, False):
            cached = runner.open(500, follow, LENGTH, reuse=reuses)
            assert (cached > 80) == reuses
            found.append(runner.prefill(500, follow[cached:]).copy())
            found.append(runner.decode([500], [5])[0].copy())
            runner.close(500)
        runner.forget()
        assert scheduled.ask(prompt) == answer
        assert np.array_equal(found[:2], found[2:])


def test_checkpoints_make_way_for_running_sequences() -> None:
    hybrid = Hybrid(BUILT / "qwen-3.5")
    graph = read_decoder_graph(hybrid.path)
    least = LENGTH * graph.bytes_per_token + 3 * (graph.bytes_per_row + 32 * graph.bytes_per_token)
    hybrid.spec = msgspec.structs.replace(hybrid.spec, kv_cache_bytes=least)
    scheduled = Scheduled(hybrid.load())
    for number in range(6):
        prompt = text(200, 60 + number)
        assert scheduled.ask(prompt) == hybrid.answer(prompt)
        assert scheduled.ask(prompt) == hybrid.answer(prompt)


# low priority


def test_preempted_sequence_continues_from_states_or_a_checkpoint(hybrid: Hybrid, tmp_path: Path) -> None:
    runner = hybrid.load().runner
    loaded = LoadedModel(runner, runner)
    scheduler = Scheduler(runner, max_running=SLOTS, max_waiting=SLOTS, prefill_chunk=32)
    loop = SteppedLoop(loaded, scheduler, Guidance(None, VOCAB), tmp_path)
    prompt = text(130)
    loop.put_request(1, prompt, max_tokens=STEPS, max_length=LENGTH, ignore_eos=True, low_priority=True)
    loop.step_until(lambda: len(loop.tokens(1)) == 3)
    (sequence,) = scheduler.running
    num_read = sequence.num_read
    scheduler._preempt(sequence)
    scheduler.admit()
    loop.loop._admission.open(sequence, 0.0)
    assert sequence.num_read == num_read  # its slot still has all of its states
    for key in range(10, 10 + SLOTS):
        loop.put_request(key, text(40, key), max_tokens=2, max_length=LENGTH, ignore_eos=True)
    loop.run(*range(10, 10 + SLOTS))
    loop.run(1)
    assert sequence.num_preemptions == 2
    assert loop.tokens(1) == hybrid.answer(prompt)
