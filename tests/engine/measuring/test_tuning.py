"""Rates of a model whose passes take a known time."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from genai_server.engine.decoder_graph import DoesNotFit
from genai_server.engine.graph_rewriting.packed_products import DOMAIN
from genai_server.engine.measuring import tuning
from genai_server.engine.measuring.tuning import Tuned, decode_rate, prefill_rate, quantized_blocks
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.scores import Scores
from genai_server.options.device import DeviceOptions
from tests.running_server import DEMO


class Steady(ScriptedRunner):
    """A runner that takes a second per prompt token and two per decode step, on its own clock."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def forward(self, reads: Sequence[Read]) -> list[Scores]:
        self.now += 2 if reads[0].decodes else reads[0].num_tokens
        return [super(Steady, self).forward([read])[0] for read in reads]


def test_prompts_are_counted_in_tokens_a_second() -> None:
    runner = Steady()
    assert prefill_rate(runner, 32, 128, 100.0, runner.clock) == pytest.approx(1.0)


def test_all_rows_count_as_decoded() -> None:
    runner = Steady()
    assert decode_rate(runner, 4, 128, 20.0, runner.clock) == pytest.approx(2.0)


def test_decoding_is_limited_by_the_sequence_length() -> None:
    runner = Steady()
    decode_rate(runner, 1, 26, 10_000.0, runner.clock)
    assert runner.now == 16 + 2 * 10


def test_tuning_measures_the_runner_that_would_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = Tuned(DEMO, tmp_path, DeviceOptions(), 128)
    runner = tuned.open(1, 4)
    assert isinstance(runner, BatchedRunner)
    assert runner.abilities.max_rows == 4
    assert decode_rate(runner, 4, 128, 0.01) > 0

    def unfit(model_dir: Path) -> None:
        raise DoesNotFit("it is another kind")

    monkeypatch.setattr(tuning, "read_decoder_graph", unfit)
    alone = tuned.open(1, 4)
    assert isinstance(alone, OgGeneratorRunner)
    assert prefill_rate(alone, 8, 128, 0.01) > 0


def test_without_a_batch_the_library_runs_the_model_that_it_knows(tmp_path: Path) -> None:
    alone = Tuned(DEMO, tmp_path, DeviceOptions(), 128, batched=False).open(1, 4)
    assert isinstance(alone, OgGeneratorRunner)
    graph = onnx.load(str(alone.model_dir / "model.onnx"), load_external_data=False).graph
    assert DOMAIN not in {node.domain for node in graph.node}


def test_bits_and_block_sizes_are_read_from_the_graph() -> None:
    assert quantized_blocks(DEMO) == [(8, 32)]
