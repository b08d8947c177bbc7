"""Passes over several rows, which give the bits of separate passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _models.driven import Driven, Tokens

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.scores import Logits
from tests.engine.model_runners import batched_runner
from tests.requantized import write_requantized
from tests.running_server import DEMO
from tests.tokens import text

MAX_LENGTH, SLOTS = 256, 6


class Sessions:
    """A session of a model directory, and the runners that share it."""

    def __init__(self, model_dir: Path, threads: int) -> None:
        self._model_dir = model_dir
        self._session = open_session(read_decoder_graph(model_dir), threads)

    def runner(self) -> Driven:
        return Driven(batched_runner(self._model_dir, session=self._session, num_slots=SLOTS, max_length=MAX_LENGTH))

    def runners(self, prompts: dict[int, list[int]]) -> tuple[Driven, Driven]:
        """Two runners with the same sequences, which have read their prompts."""
        found = self.runner(), self.runner()
        for runner in found:
            for sequence, prompt in prompts.items():
                begin(runner, sequence, prompt, reuse=False)
        return found


@pytest.fixture(scope="module", params=[(8, 1), (8, 3), (4, 2)])
def sessions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sessions:
    """The demo model with weights of some bits, on some threads."""
    bits, threads = request.param
    folder = tmp_path_factory.mktemp("models") / "four"
    return Sessions(DEMO if bits == 8 else write_requantized(DEMO, folder), threads)


def begin(runner: Driven, sequence: int, prompt: list[int], **how: Any) -> Logits:
    cached = runner.open(sequence, prompt, MAX_LENGTH, **how)
    return runner.prefill(sequence, prompt[cached:])


def rows(tokens: dict[int, int]) -> list[Tokens]:
    return [(sequence, [token], True) for sequence, token in tokens.items()]


def chunk(sequence: int, tokens: list[int]) -> Tokens:
    return sequence, tokens, False


def logits_of(runner: Driven, step: list[Tokens]) -> list[Logits]:
    return [scores.logits[-1].copy() for scores in runner.read(*step)]


@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_pass_gives_the_bits_of_separate_passes(sessions: Sessions, num_rows: int) -> None:
    prompt, found = text(80, 9), []
    for is_mixed in (False, True):
        runner = sessions.runner()
        for sequence in range(num_rows):
            begin(runner, sequence, text(20 + 7 * sequence), reuse=False)
        decoding = rows({sequence: 100 + sequence for sequence in range(num_rows)})
        runner.open(9, prompt, MAX_LENGTH, reuse=False)
        given: list[Logits] = []
        for start in range(0, len(prompt), 20):
            reading = chunk(9, prompt[start : start + 20])
            for step in [[*decoding, reading]] if is_mixed else [decoding, [reading]]:
                given += logits_of(runner, step)
        given += logits_of(runner, rows({9: 7}))
        found.append(given)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_prompts_of_any_length_share_a_pass(sessions: Sessions) -> None:
    lengths, found = (3, 16, 17, 40, 200), []
    for is_shared in (False, True):
        runner = sessions.runner()
        chunks = [chunk(sequence, text(length)) for sequence, length in enumerate(lengths)]
        for sequence, tokens, *_ in chunks:
            runner.open(sequence, tokens, MAX_LENGTH, reuse=False)
        steps = [chunks] if is_shared else [[each] for each in chunks]
        given = [logits for step in steps for logits in logits_of(runner, step)]
        given += logits_of(runner, rows(dict.fromkeys(range(len(lengths)), 7)))
        found.append(given)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_row_outside_a_pass_continues_unchanged(sessions: Sessions) -> None:
    runner, alone = sessions.runners({1: text(30)})
    begin(runner, 2, text(40, 2))
    runner.decode([1, 2], [6, 6])
    alone.decode([1], [6])
    runner.open(3, text(50, 3), MAX_LENGTH)
    logits_of(runner, [*rows({2: 8}), chunk(3, text(50, 3)[:24])])
    assert np.array_equal(runner.decode([1], [7]), alone.decode([1], [7]))


def test_drafts_of_several_rows_give_the_bits_of_single_tokens(sessions: Sessions) -> None:
    drafts, reading = {1: [5, 6, 7], 2: [], 3: [8], 4: [9] * 15}, text(40, 9)
    runner, alone = sessions.runners({sequence: text(12 * sequence, sequence) for sequence in drafts})
    runner.open(9, reading, MAX_LENGTH, reuse=False)
    *found, _ = runner.read(*((sequence, [4], True, draft) for sequence, draft in drafts.items()), chunk(9, reading))
    for scores, (sequence, draft) in zip(found, drafts.items(), strict=True):
        for logits, token in zip(scores.logits, [4, *draft], strict=True):
            assert np.array_equal(logits, alone.decode([sequence], [token])[0])


def test_a_pass_with_drafts_leaves_nothing_to_the_next(sessions: Sessions) -> None:
    runner, alone = sessions.runners({1: text(30, 1)})
    runner.read((1, [4], True, [5, 6, 7]))
    runner.accept(1, [5])
    for token in (4, 5):
        alone.decode([1], [token])
    assert np.array_equal(runner.decode([1], [8]), alone.decode([1], [8]))
