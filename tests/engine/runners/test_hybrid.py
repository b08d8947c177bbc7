"""Models with layers that keep states of fixed size, in the batch: LFM2's convolutions, Qwen 3.5's linear attention.

The models are those of the real builder (tests/built_models/README.md). Each answer must be that of a Generator.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from _models.driven import Driven

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners.base import Interrupted, open_bare
from genai_server.engine.runners.batched import BatchedRunner, DecoderSession
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.errors import RunnerFailed
from tests.engine.hybrids import BUILT, LENGTH, SLOTS, STEPS, Hybrid, begin, best, finish, loop_of, put_request, text
from tests.engine.model_runners import interrupts


def test_rows_of_any_lengths_decode_together(hybrid: Hybrid, runner: Driven) -> None:
    prompts = [text(length) for length in (1, 5, 100, 31, 17)]
    found = [[begin(runner, number, prompt)] for number, prompt in enumerate(prompts)]
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
        begin(runner, number, prompt)
    runner.open(1, late, LENGTH, reuse=False)  # its slot is the last of the three
    for start in range(0, len(late), chunk):
        step = min(start // chunk, STEPS - 2)
        decoding = [(number, [answers[place][step]], True) for place, number in enumerate((0, 2))]
        chunks = [*decoding, (1, late[start : start + chunk], False)]
        *scores, last = runner.read(*(chunks if start // chunk < STEPS - 1 else chunks[2:]))
        for answer, score in zip(answers, scores, strict=False):
            assert best(score.logits) == answer[step + 1]
    assert finish(runner, 1, best(last.logits)) == hybrid.answer(late)


def test_idle_rows_between_others_keep_their_states(hybrid: Hybrid, runner: Driven) -> None:
    prompts = [text(length, 5) for length in (9, 30, 17)]
    firsts = [begin(runner, number, prompt) for number, prompt in enumerate(prompts)]
    for step in range(STEPS - 1):
        runner.decode([0, 2], [hybrid.answer(prompts[number])[step] for number in (0, 2)])
    assert finish(runner, 1, firsts[1]) == hybrid.answer(prompts[1])


def test_a_slot_that_was_cancelled_gives_nothing_to_the_next(hybrid: Hybrid, runner: Driven) -> None:
    for number in range(3 * SLOTS):
        prompt = text(20 + number, 6)
        first = begin(runner, number, prompt)
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
                begin(runner, number, text(10 * number, 8), reuse=False)
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


def test_an_interrupted_chunk_can_be_read_again(hybrid: Hybrid, runner: Driven) -> None:
    prompt, num_interrupts = text(200, 9), 0
    for number in range(1000):  # the chunks are so short that the first ones may escape
        if num_interrupts >= 2:
            break
        runner.open(number, prompt, LENGTH, reuse=False)
        for chunk in (prompt[:50], prompt[50:]):
            try:
                with interrupts(runner, 0):
                    first = best(runner.prefill(number, chunk))
            except Interrupted:
                num_interrupts += 1
                first = best(runner.prefill(number, chunk))
        assert finish(runner, number, first, 4) == hybrid.answer(prompt)[:4]
    assert num_interrupts


def test_a_failed_pass_leaves_no_prefix(runner: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = text(30, 10)
    begin(runner, 0, prompt)
    with monkeypatch.context() as patched, pytest.raises(RunnerFailed):
        patched.setattr(DecoderSession, "run", Mock(side_effect=RunnerFailed("broken")))
        runner.decode([0], [5])
    runner.close(0)
    assert runner.open(1, [*prompt, 5, 6, 7], LENGTH) == 0


def test_packed_weights_and_settings_choose_the_batch(hybrid: Hybrid, tmp_path: Path) -> None:
    loaded = load_model(msgspec.structs.replace(hybrid.spec, cache_dir=str(tmp_path)))
    assert loaded.batch is not None, loaded.batching.reason
    prompt, runner = text(30, 11), Driven(loaded.main)
    assert finish(runner, 0, begin(runner, 0, prompt)) == hybrid.answer(prompt)


# Cached prefixes.


class Scheduled:
    """Reads prompts in the chunks that a scheduler would ask for."""

    def __init__(self, runner: Driven) -> None:
        assert isinstance(runner.runner, BatchedRunner)
        self._runner = runner.runner
        self._numbers = count()

    def ask(self, prompt: list[int], num_tokens: int = STEPS) -> tuple[list[int], int]:
        """The greedy answer, and how many tokens of the prompt were read."""
        sequence = open_bare(self._runner, prompt, LENGTH, id=next(self._numbers), reuses_past=True)
        num_read = 0
        while sequence.num_produced < num_tokens:
            chunk = 1 if sequence.is_decoding else self._runner.fit_chunk(sequence, 512)
            num_read += 0 if sequence.is_decoding else chunk
            read = ScheduledChunk.next(sequence, chunk)
            [scores] = self._runner.forward([read])
            read.count()
            if not sequence.num_unread:
                sequence.append(best(scores.logits[-1]))
        self._runner.close(sequence.id)
        return sequence.tokens[len(prompt) :], num_read


# Asks for a greedy answer, which must be right, and returns it with the number of the prompt's tokens that were read.
Ask = Callable[..., tuple[list[int], int]]


@pytest.fixture
def ask(hybrid: Hybrid, runner: Driven) -> Ask:
    scheduled = Scheduled(runner)

    def checked(prompt: list[int], num_tokens: int = STEPS) -> tuple[list[int], int]:
        answer, num_read = scheduled.ask(prompt, num_tokens)
        assert answer == hybrid.answer(prompt)[:num_tokens]
        return answer, num_read

    return checked


def test_twenty_turns_read_only_their_new_tokens(ask: Ask) -> None:
    conversation = text(40, 20)
    num_new, num_all_read = len(conversation), 0
    for turn in range(20):
        answer, num_read = ask(conversation, 5)
        num_all_read += num_read
        new = text(5, 21 + turn)
        num_new += len(new) + 1  # the last token of an answer is read with the next turn
        conversation = [*conversation, *answer, *new]
    assert num_all_read <= num_new


def test_short_turns_without_the_prompts_end_are_read_once(ask: Ask) -> None:
    conversation, num_new = text(40, 20), 40
    for turn in range(6):
        opening = text(4, 40 + turn)  # the next prompt lacks these tokens
        answer, num_read = ask([*conversation, *opening], 3)
        assert num_read <= num_new + len(opening) + 9
        new = [*answer, *text(28, 50 + turn)]
        num_new = len(new)
        conversation += new


def test_an_edited_end_is_read_from_the_checkpoint_before_it(ask: Ask) -> None:
    prompt = text(100, 30)
    ask(prompt)
    for following in ([*prompt[:-4], *text(6, 31)], prompt):
        assert ask(following)[1] < 20


@pytest.mark.parametrize("end", [0, 4])
def test_an_answer_without_its_reasoning_is_read_alone(ask: Ask, end: int) -> None:
    prompt = text(100, 32)
    answer, _ = ask(prompt)
    # Templates may leave out the prompt's last tokens, too: those that begin the reasoning.
    _, num_read = ask([*prompt[: len(prompt) - end], *answer[-3:], *text(10, 33)])
    assert num_read <= 13 + (13 if end else 0)


def test_a_common_beginning_is_read_twice_and_then_copied(ask: Ask) -> None:
    common = text(120, 40)
    # The second one shows how far prompts are alike, and leaves a checkpoint there.
    assert [ask([*common, *text(30, 41 + number)])[1] for number in range(4)] == [150, 150, 30, 30]


def test_a_reused_prefix_leaves_every_bit_as_it_was(packed_hybrid: Hybrid) -> None:
    """States are those behind a checkpoint, or behind an answer."""
    runner = packed_hybrid.load()
    scheduled, prompt = Scheduled(runner), text(100, 50)
    answer, _ = scheduled.ask(prompt)
    for follow in ([*prompt, *answer, *text(5, 51)], [*prompt[:-3], *text(8, 52)]):
        found = []
        for reuses in (True, False):
            cached = runner.open(500, follow, LENGTH, reuse=reuses)
            assert (cached > 80) == reuses
            found.append(runner.prefill(500, follow[cached:]).copy())
            found.append(runner.decode([500], [5])[0].copy())
            runner.close(500)
        runner.forget()
        assert scheduled.ask(prompt)[0] == answer
        assert np.array_equal(found[:2], found[2:])


def test_checkpoints_make_way_for_running_sequences() -> None:
    hybrid = Hybrid(BUILT / "qwen-3.5")
    graph = read_decoder_graph(hybrid.path)
    least = LENGTH * graph.bytes_per_token + 3 * (graph.bytes_per_row + 32 * graph.bytes_per_token)
    hybrid.spec = msgspec.structs.replace(hybrid.spec, kv_cache_bytes=least)
    scheduled = Scheduled(hybrid.load())
    for number in range(6):
        prompt = text(200, 60 + number)
        for _ in range(2):
            assert scheduled.ask(prompt)[0] == hybrid.answer(prompt)


# low priority


def test_preempted_sequence_continues_from_states_or_a_checkpoint(hybrid: Hybrid, tmp_path: Path) -> None:
    runner = hybrid.load().runner
    loop, prompt = loop_of(LoadedModel(runner, runner), tmp_path, speculates=False), text(130)
    put_request(loop, 1, prompt, low_priority=True)
    loop.step_until(lambda: len(loop.tokens(1)) == 3)
    (sequence,) = loop.scheduler.running
    num_read = sequence.num_read
    loop.scheduler._preempt(sequence)
    loop.scheduler.admit()
    loop.loop._admission.open(sequence, 0.0)
    assert sequence.num_read == num_read  # its slot still has all of its states
    for key in range(10, 10 + SLOTS):
        put_request(loop, key, text(40, key), max_tokens=2)
    loop.run(*range(10, 10 + SLOTS))
    loop.run(1)
    assert sequence.num_preemptions == 2
    assert loop.tokens(1) == hybrid.answer(prompt)
