"""Passes over several rows and with 8-bit weights, compared with separate passes with the model's own weights."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genai_server.engine.graph_rewriting.int8_matrices import write_int8_model
from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.batch_sessions import Int8Session
from genai_server.engine.runners.decoder_session import DecoderSession
from genai_server.engine.scores import Logits
from genai_server.errors import RunnerFailed
from scripts._models.driven import Driven, Tokens
from scripts._models.requantized import write_requantized
from tests.engine.model_runners import batched_runner
from tests.running_server import DEMO
from tests.tokens import text

MAX_LENGTH, SLOTS = 256, 6


class Sessions:
    """Sessions of one model directory, and the runners that share them."""

    def __init__(self, model_dir: Path, int8_dir: Path | None = None) -> None:
        self._model_dir = model_dir
        self.own = open_session(read_decoder_graph(model_dir), 2, optimized=False)
        self.int8 = None
        if int8_dir is not None:
            self.int8 = Int8Session(open_session(read_decoder_graph(int8_dir), 2, optimized=False))

    def runner(self, int8: Int8Session | None = None) -> Driven:
        return Driven(
            batched_runner(self._model_dir, session=self.own, num_slots=SLOTS, max_length=MAX_LENGTH, int8=int8)
        )


@pytest.fixture(scope="module")
def demo_sessions() -> Sessions:
    return Sessions(DEMO)


@pytest.fixture(scope="module")
def four_bits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    folder = tmp_path_factory.mktemp("int8")
    own, eight = write_requantized(DEMO, folder / "own"), write_requantized(DEMO, folder / "eight")
    write_int8_model(own / "model.onnx", eight / "model.onnx")
    yield Sessions(own, eight)


def has_int8_from(runner: Driven, num_tokens: int) -> None:
    runner.runner.abilities = replace(runner.abilities, int8_from=num_tokens)


def begin(runner: Driven, sequence: int, prompt: list[int], **how: Any) -> Logits:
    cached = runner.open(sequence, prompt, MAX_LENGTH, **how)
    return runner.prefill(sequence, prompt[cached:])


def rows(tokens: dict[int, int]) -> list[Tokens]:
    return [(sequence, [token], True) for sequence, token in tokens.items()]


def chunk(sequence: int, tokens: list[int]) -> Tokens:
    return sequence, tokens, False


def logits_of(runner: Driven, step: list[Tokens]) -> list[Logits]:
    return [scores.logits[-1].copy() for scores in runner.read(*step)]


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_a_pass_gives_the_bits_of_separate_passes(demo_sessions: Sessions, num_rows: int) -> None:
    prompt, found = text(80, 9), []
    for is_mixed in (False, True):
        runner = demo_sessions.runner()
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


def test_prompts_of_any_length_share_a_pass(demo_sessions: Sessions) -> None:
    lengths, found = (3, 16, 17, 40, 200), []
    for is_shared in (False, True):
        runner = demo_sessions.runner()
        chunks = [chunk(sequence, text(length)) for sequence, length in enumerate(lengths)]
        for sequence, tokens, *_ in chunks:
            runner.open(sequence, tokens, MAX_LENGTH, reuse=False)
        steps = [chunks] if is_shared else [[each] for each in chunks]
        given = [logits for step in steps for logits in logits_of(runner, step)]
        given += logits_of(runner, rows(dict.fromkeys(range(len(lengths)), 7)))
        found.append(given)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_chunk_in_a_slot_between_decoding_rows_is_preserved(demo_sessions: Sessions) -> None:
    prompt, found = text(MAX_LENGTH, 9), []
    for is_mixed in (False, True):
        runner = demo_sessions.runner()
        begin(runner, 1, text(20), reuse=False)
        runner.open(9, prompt, MAX_LENGTH, reuse=False)
        begin(runner, 2, text(30), reuse=False)
        given: list[Logits] = []
        for start in range(0, len(prompt), 32):
            decoding, reading = rows({1: 100 + start, 2: 90 + start}), chunk(9, prompt[start : start + 32])
            for step in [[*decoding, reading]] if is_mixed else [decoding, [reading]]:
                given += logits_of(runner, step)
        assert [runner.slots.of(sequence).index for sequence in (1, 9, 2)] == [0, 1, 2]
        found.append(given)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_row_outside_a_pass_continues_unchanged(demo_sessions: Sessions) -> None:
    runner, alone = demo_sessions.runner(), demo_sessions.runner()
    for each in (runner, alone):
        begin(each, 1, text(30))
        each.decode([1], [5])
    begin(runner, 2, text(40, 2))
    runner.decode([1, 2], [6, 6])
    alone.decode([1], [6])
    runner.open(3, text(50, 3), MAX_LENGTH)
    logits_of(runner, [*rows({2: 8}), chunk(3, text(50, 3)[:24])])
    assert np.array_equal(runner.decode([1], [7]), alone.decode([1], [7]))


def test_weights_of_eight_bits_answer_nearly_as_those_of_four(four_bits: Sessions) -> None:
    own, runner = four_bits.runner(), four_bits.runner(four_bits.int8)
    has_int8_from(runner, 1)
    for each in (own, runner):
        begin(each, 2, text(30, 2), reuse=False)
        each.open(3, text(60, 3), MAX_LENGTH, reuse=False)
    given = []
    for each in (own, runner):
        decoded = logits_of(each, rows({2: 5}))
        reading = chunk(3, text(60, 3)[:40])
        given.append([*decoded, *logits_of(each, [*rows({2: 6}), reading])])
    for one, other in zip(*given, strict=True):
        assert not np.array_equal(one, other)
        assert np.sqrt(np.square(one - other).mean()) < 0.15 * one.std()


def test_steps_of_few_tokens_have_the_models_own_weights(four_bits: Sessions) -> None:
    own, runner = four_bits.runner(), four_bits.runner(four_bits.int8)
    has_int8_from(runner, 16)
    prompt = text(64, 4)
    for tokens, is_own in ((prompt[:15], True), (prompt[:16], False)):
        first, second = (begin(each, 1, tokens, reuse=False) for each in (own, runner))
        assert np.array_equal(first, second) is is_own
        own.close(1)
        runner.close(1)


def test_exact_sequence_never_uses_requantized_weights(
    four_bits: Sessions,
) -> None:
    own, runner = four_bits.runner(), four_bits.runner(four_bits.int8)
    has_int8_from(runner, 1)
    prompt = text(64, 5)
    begin(runner, 1, prompt)
    assert runner.open(2, prompt, MAX_LENGTH, exact=True) == 0
    expected = begin(own, 2, prompt, exact=True)
    assert np.array_equal(runner.prefill(2, prompt), expected)
    assert np.array_equal(runner.decode([2], [5]), own.decode([2], [5]))
    assert runner.open(3, prompt, MAX_LENGTH) > 0


def test_weights_of_eight_bits_are_tried_at_the_start(
    four_bits: Sessions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert four_bits.int8 is not None
    caplog.set_level("INFO")
    assert four_bits.runner(replace(four_bits.int8, min_gain=0.0)).abilities.int8_from in (4, 8, 16, 64)
    assert "weights of 8 bits are used from" in caplog.text
    assert four_bits.runner(replace(four_bits.int8, min_gain=1000.0)).abilities.int8_from is None
    assert "weights of 8 bits are not used" in caplog.text
    monkeypatch.setattr("genai_server.engine.runners.trials._MAX_DIFFERENCE", 0.0)
    assert four_bits.runner(replace(four_bits.int8, min_gain=0.0)).abilities.int8_from is None


def test_weights_of_eight_bits_that_fail_are_left_out(
    four_bits: Sessions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert four_bits.int8 is not None
    eight, read = four_bits.int8.session, DecoderSession.read_prompt

    def fail(self: DecoderSession) -> None:
        if self.session is eight:
            raise RunnerFailed("last two dimensions of skip needs to be same as input")
        read(self)

    monkeypatch.setattr(DecoderSession, "read_prompt", fail)
    runner = four_bits.runner(replace(four_bits.int8, min_gain=0.0))
    assert runner.abilities.int8_from is None
    assert "weights of 8 bits are not used: last two dimensions" in caplog.text
    runner.open(0, [1, 2, 3], MAX_LENGTH)
    runner.prefill(0, [1, 2, 3])


def test_runner_without_such_weights_has_no_int8(demo_sessions: Sessions) -> None:
    assert demo_sessions.runner().abilities.int8_from is None
