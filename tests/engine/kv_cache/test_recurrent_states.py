"""States of fixed size, and drafts for models with them.

Answers are those without drafts, however much of these is accepted.
"""

import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from _models.driven import Driven, Tokens
from numpy.typing import NDArray

from genai_server.engine.graph_rewriting.native_attention import NATIVE
from genai_server.engine.kv_cache.buffers import RowStates
from genai_server.engine.model.graph_reader import read_cross_decoder, read_decoder_graph
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import common_prefix_length
from genai_server.messages.engine_protocol import Cancel
from tests.engine.hybrids import (
    BUILT,
    LENGTH,
    SLOTS,
    STEPS,
    VOCAB,
    Hybrid,
    begin,
    best,
    finish,
    loop_of,
    put_request,
    text,
)


class Drafted:
    """Greedy answers whose next tokens are drafted: the right ones, up to a wrong one."""

    def __init__(self, hybrid: Hybrid, runner: Driven, prompts: list[list[int]]) -> None:
        self._runner = runner
        self._right = [hybrid.answer(prompt) for prompt in prompts]
        self.answers: list[list[int]] = []
        for number, prompt in enumerate(prompts):
            self.answers.append([begin(runner, number, prompt, reuse=False)])

    def read(self, drafts: dict[int, tuple[int, int]], *others: Tokens) -> list[Scores]:
        """Advance some answers in a pass. Their drafts have some right tokens, and some wrong ones behind them. The
        scores are those of the others that are read.
        """
        reads = []
        for number, (num_right, num_wrong) in drafts.items():
            place = len(self.answers[number])
            right = self._right[number][place : place + num_right]
            following = self._right[number][place + len(right) :][:num_wrong]
            wrong = [3 + (token - 2) % (VOCAB - 3) for token in [*following, *[5] * num_wrong][:num_wrong]]
            reads.append((number, self.answers[number][-1:], True, [*right, *wrong]))
        scores = self._runner.read(*reads, *others)
        for (number, _, _, draft), found in zip(reads, scores, strict=False):
            chosen = [best(logits) for logits in found.logits]
            num_accepted = next((place for place, token in enumerate(draft) if chosen[place] != token), len(draft))
            self._runner.accept(number, draft[:num_accepted])
            self.answers[number] += chosen[: num_accepted + 1]
        return scores[len(reads) :]

    @property
    def is_right(self) -> bool:
        """Whether all tokens up to now are those of the Generator."""
        return all(
            right[: len(answer)] == answer[: len(right)]
            for right, answer in zip(self._right, self.answers, strict=True)
        )


def test_answers_with_drafts_are_those_without(hybrid: Hybrid, runner: Driven) -> None:
    assert runner.abilities.drafts
    drafted = Drafted(hybrid, runner, [text(length, 60) for length in (1, 30, 9, 17)])
    drafted.read({0: (2, 1), 1: (0, 3), 2: (3, 0), 3: (0, 0)})
    assert [len(answer) for answer in drafted.answers] == [4, 2, 5, 2]
    drafted.read({1: (1, 4), 3: (2, 2)})
    drafted.read(dict.fromkeys(range(4), (0, 0)))
    drafted.read({0: (0, 1), 2: (1, 1), 3: (4, 0)})
    drafted.read(dict.fromkeys(range(4), (1, 1)))
    assert [len(answer) for answer in drafted.answers] == [8, 7, 10, 13]
    assert drafted.is_right


def test_a_draft_that_nobody_verifies_is_not_in_the_states(hybrid: Hybrid, runner: Driven) -> None:
    prompt = text(20, 65)
    first = begin(runner, 0, prompt)
    second = best(runner.read((0, [first], True, [5, 6]))[0].logits[0])
    runner.close(0)
    following = [*prompt, first, second, 7, 8]
    assert runner.open(1, following, LENGTH) == len(prompt) + 1
    assert finish(runner, 1, best(runner.prefill(1, following[-3:]))) == hybrid.answer(following)


def test_states_that_could_not_be_made_are_not_reused(
    hybrid: Hybrid, runner: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = text(20, 72)
    first = begin(runner, 0, prompt)
    runner.read((0, [first], True, [5, 6]))
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(RowStates, "accept", Mock(side_effect=MemoryError("no memory")))
        runner.accept(0, [5])
    runner.close(0)
    following = [*prompt, first, 7, 8]
    assert finish(runner, 1, begin(runner, 1, following)) == hybrid.answer(following)


# The drafts of each pass over an answer, of which some tokens are right.
ALL_WAYS: list[list[list[int]]] = [
    [[], [], [], [], []],
    [[6, 7], [8]],
    [[6, 11, 7], [], [8, 9, 3]],
    [[6, 7, 8, 9, 3, 3]],
]


def test_rows_are_bitwise_equal_next_to_drafts_and_with_them(packed_hybrid: Hybrid) -> None:
    prompt, following = text(40, 66), [5, 6, 7, 8, 9]
    expected = None
    for threads in (1, 3):
        runner = packed_hybrid.load(threads=threads)
        for ways in ALL_WAYS:
            drafted = Drafted(packed_hybrid, runner, [text(12, 67)])
            runner.open(1, prompt, LENGTH, reuse=False)
            rows, unread = [runner.prefill(1, prompt).copy()], following
            for draft in ways:
                [scores] = drafted.read({0: (1, 2)}, (1, unread[:1], True, draft))
                num_right = common_prefix_length(draft, unread[1:])
                runner.accept(1, draft[:num_right])
                rows += [logits.copy() for logits in scores.logits[: num_right + 1]]
                unread = unread[num_right + 1 :]
            rows += [runner.decode([1], [token])[0].copy() for token in unread]
            runner.close(0)
            runner.close(1)
            found = np.stack(rows)
            expected = found if expected is None else expected
            assert np.array_equal(found, expected), (threads, ways)


def test_a_prefix_is_reused_behind_accepted_tokens(hybrid: Hybrid, runner: Driven) -> None:
    prompt = text(20, 68)
    drafted = Drafted(hybrid, runner, [prompt])
    drafted.read({0: (3, 2)})
    runner.close(0)
    following = [*prompt, *drafted.answers[0], *text(5, 69)]
    assert runner.open(1, following, LENGTH) == len(prompt) + 4
    found = finish(runner, 1, best(runner.prefill(1, following[len(prompt) + 4 :])))
    assert found == hybrid.answer(following)


# The states themselves.


def states_of(runner: Driven, sequence: int) -> list[NDArray[Any]]:
    """Copies of the states of a sequence. They are not asked for by `save`, which forgets its draft."""
    index = runner.slots.of(sequence).index
    return [array[index].copy() for array in runner.states.arrays]


def are_equal(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> bool:
    return all(map(np.array_equal, found, expected))


def two_alike(hybrid: Hybrid, prompt: list[int]) -> Driven:
    """A runner with two sequences that have read the same prompt."""
    runner = hybrid.load()
    for sequence in (0, 1):
        begin(runner, sequence, prompt, reuse=False)
    return runner


@pytest.mark.parametrize("num_accepted", [0, 2, 4])
def test_states_are_bitwise_those_of_the_accepted_tokens(packed_hybrid: Hybrid, num_accepted: int) -> None:
    runner, draft = two_alike(packed_hybrid, text(30, 80)), [5, 6, 7, 8]
    runner.read((0, [4], True, draft), (1, [4], True))
    before = states_of(runner, 0)
    assert are_equal(before, states_of(runner, 1))  # the draft has not changed them
    runner.accept(0, draft[:num_accepted])
    for token in draft[:num_accepted]:
        runner.decode([1], [token])
    assert are_equal(states_of(runner, 0), states_of(runner, 1))
    assert are_equal(states_of(runner, 0), before) == (num_accepted == 0)


def test_drafts_of_a_pass_are_accepted_one_row_after_another(packed_hybrid: Hybrid) -> None:
    runner, expected = packed_hybrid.load(), packed_hybrid.load()
    drafts = {0: [5, 6, 7], 1: [], 2: [8], 3: [9, 10]}
    accepted = {3: 1, 0: 2, 2: 1}
    for on in (runner, expected):
        for sequence in drafts:
            begin(on, sequence, text(10 + sequence, 81))
    runner.read(*((sequence, [4], True, draft) for sequence, draft in drafts.items()))
    for sequence, number in accepted.items():
        runner.accept(sequence, drafts[sequence][:number])
    for sequence, draft in drafts.items():
        for token in [4, *draft[: accepted.get(sequence, 0)]]:
            expected.decode([sequence], [token])
    for sequence in drafts:
        assert are_equal(states_of(runner, sequence), states_of(expected, sequence))


def test_a_draft_is_forgotten_with_the_next_pass(packed_hybrid: Hybrid) -> None:
    runner = two_alike(packed_hybrid, text(20, 82))
    runner.read((0, [4], True, [5, 6]))
    before = states_of(runner, 0)
    runner.decode([1], [4])
    runner.accept(0, [5])
    assert are_equal(states_of(runner, 0), before)


@pytest.mark.parametrize("change", ["clear", "load", "copy", "save"])
def test_states_that_were_set_have_no_draft(hybrid: Hybrid, change: str) -> None:
    runner = two_alike(hybrid, text(20, 83))
    states: RowStates = runner.states
    row, other = (runner.slots.of(sequence).index for sequence in (0, 1))
    saved = states.save(other)
    runner.read((0, [4], True, [5, 6]))
    if change == "save":
        saved = states.save(row)
    else:
        getattr(states, change)(*{"clear": [row], "load": [row, saved], "copy": [other, row]}[change])
    expected = [np.zeros_like(array) for array in saved] if change == "clear" else saved
    assert are_equal(states_of(runner, 0), expected)
    states.accept(row, 1)
    assert are_equal(states_of(runner, 0), expected)


def test_saved_states_are_copies(packed_hybrid: Hybrid) -> None:
    states = RowStates(read_decoder_graph(packed_hybrid.path), 3)
    for number, array in enumerate(states.arrays):
        array[1] = number + 1
    saved = states.save(1)
    states.clear(1)
    assert not any(array.any() for array in states.arrays)
    states.load(2, saved)
    states.copy(2, 0)
    for number, array in enumerate(states.arrays):
        assert (array[[0, 2]] == number + 1).all()
        assert not array[1].any()


def test_a_row_has_as_many_bytes_as_its_states(packed_hybrid: Hybrid) -> None:
    graph = read_decoder_graph(packed_hybrid.path)
    assert graph.bytes_per_row == sum(array[0].nbytes for array in RowStates(graph, 2).arrays) > 0


def test_a_sound_is_that_of_its_row() -> None:
    graph = read_cross_decoder(BUILT / "whisper")
    states, binding = RowStates(graph, 2), Mock()
    assert graph.bytes_per_row == sum(array[0].nbytes for array in states._audio.values())
    sound = [np.full((1, *state.shape), number + 1, state.type) for number, state in enumerate(graph.cross_states)]
    states.set_audio(1, sound)
    states.bind(binding)
    shapes = {name: shape for name, _, _, _, shape, _ in (call.args for call in binding.bind_input.call_args_list)}
    assert shapes == {NATIVE + state.past: (2, *state.shape) for state in graph.cross_states}
    assert states.arrays == []  # a sound is not saved with the states behind a prefix
    assert {name: (array[0].any(), array[1].min()) for name, array in states._audio.items()} == {
        NATIVE + state.past: (False, number + 1) for number, state in enumerate(graph.cross_states)
    }


# In the engine's loop.


@pytest.mark.usefixtures("passes_of_any_length_take_the_same_time")
def test_random_requests_are_answered_as_alone(hybrid: Hybrid, runner: Driven, tmp_path: Path) -> None:
    device = loop_of(LoadedModel(runner.runner, runner.runner), tmp_path)
    chance, texts = random.Random(73), [text(length, 73) for length in (3, 20, 50, 100)]
    asked, num_cancelled = dict[int, list[int]](), 0
    for key in range(24):
        # Prompts begin alike, and some continue an answer.
        prompt = chance.choice(texts)[: chance.randint(1, 100)]
        if chance.random() < 0.3:
            prompt = [*prompt, *hybrid.answer(prompt)[: chance.randint(1, STEPS)], chance.randrange(VOCAB)]
        prediction = [token if chance.random() < 0.8 else 5 for token in hybrid.answer(prompt)]
        given: dict[str, Any] = {"prediction": prediction} if chance.random() < 0.5 else {}
        given |= {"low_priority": chance.random() < 0.3, "cache_prompt": chance.random() < 0.8}
        put_request(device, key, prompt, **given)
        asked[key] = prompt
        device.steps(chance.randint(1, 6))
        device.step_until(lambda: sum(not device.ends(key) for key in asked) < SLOTS)
        if chance.random() < 0.1 and not device.ends(cancelled := chance.choice(list(asked))):
            del asked[cancelled]
            device.put(Cancel(cancelled))
            num_cancelled += 1
    device.run(*asked)
    assert {key: device.tokens(key) for key in asked} == {key: hybrid.answer(prompt) for key, prompt in asked.items()}
    assert num_cancelled
    assert sum(device.end(key).num_accepted for key in asked) > 24
