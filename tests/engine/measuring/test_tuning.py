"""Rates of a model whose passes take a known time."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from genai_server.engine.measuring import tuning
from genai_server.engine.measuring.tuning import Tuned, decode_rate, prefill_rate, quantized_blocks
from genai_server.engine.model.graph import DoesNotFit
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scores import Logits
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.options.device import DeviceOptions
from tests.running_server import DEMO


class Steady(ScriptedRunner):
    """Takes a second for each token of a prompt and two for each decode step, on a clock of its own."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        self.now += len(tokens)
        return super().prefill(sequence, tokens, positions=positions)

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        self.now += 2
        return super().prefill(sequences[0], tokens)


def test_prompts_are_counted_in_tokens_a_second() -> None:
    runner = Steady()
    assert prefill_rate(runner, 32, 128, 100.0, runner.clock) == pytest.approx(1.0)


def test_all_rows_count_as_decoded() -> None:
    runner = Steady()
    assert decode_rate(runner, 4, 128, 20.0, runner.clock) == pytest.approx(2.0)


def test_no_more_is_decoded_than_a_sequence_has_room_for() -> None:
    runner = Steady()
    decode_rate(runner, 1, 26, 10_000.0, runner.clock)
    assert runner.now == 16 + 2 * 10


def test_what_is_measured_is_what_would_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = Tuned(DEMO, tmp_path, DeviceOptions(), 128)
    runner = tuned.open(1, 4)
    assert isinstance(runner, BatchedRunner)
    assert runner.max_rows == 4
    assert decode_rate(runner, 4, 128, 0.01) > 0

    def unfit(model_dir: Path) -> None:
        raise DoesNotFit("it is another kind")

    monkeypatch.setattr(tuning, "read_decoder_graph", unfit)
    alone = tuned.open(1, 4)
    assert isinstance(alone, OgGeneratorRunner)
    assert prefill_rate(alone, 8, 128, 0.01) > 0


def test_bits_and_block_sizes_are_read_from_the_graph() -> None:
    assert quantized_blocks(DEMO) == [(8, 32)]
