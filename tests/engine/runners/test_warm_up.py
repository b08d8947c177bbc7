"""The passes that an engine runs before it is ready, which leave nothing behind."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from _models.driven import Driven

from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import LoadedModel, scores_prompts, time_passes, warm_up
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.runners.sequence_limits import with_limit
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.scores import Scores
from genai_server.errors import RunnerFailed
from tests.engine.runners.test_load_model import spec
from tests.model_edits import make_pruned_model
from tests.running_server import DEMO


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Whether passes decode, and their numbers of tokens."""
    found: list[tuple[bool, int]] = []

    def note(runner: type[Runner]) -> None:
        forward = runner.forward

        def noted(self: Any, chunks: Sequence[ScheduledChunk]) -> list[Scores]:
            found.append((chunks[0].decodes, sum(chunk.num_tokens for chunk in chunks)))
            return forward(self, chunks)

        monkeypatch.setattr(runner, "forward", noted)

    note(ScriptedRunner)
    note(BatchedRunner)
    return found


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [(2048, [(False, 32), (True, 1), (True, 1)]), (20, [(False, 18), (True, 1), (True, 1)]), (3, [])],
)
def test_a_chunk_is_read_and_tokens_are_decoded(
    max_length: int, expected: list[tuple[bool, int]], passes: list[tuple[bool, int]]
) -> None:
    runner = ScriptedRunner()
    runner.model = with_limit(runner.model, max_length)
    warm_up(LoadedModel(runner, reason="scripted"), 128)
    assert passes == expected


def test_warm_up_decodes_one_row_and_all_rows_and_reads_drafts(passes: list[tuple[bool, int]]) -> None:
    loaded = load_model(spec(128))
    passes.clear()
    warm_up(loaded, 64)
    assert [number for decodes, number in passes if decodes] == [1, 1, 4, 4, 4, 8, 16]
    times = StepTimeModel(loaded.main.abilities.tried_passes, loaded.main.abilities.tried_prompt_token)
    assert list(loaded.main.abilities.tried_passes) == [1, 4, 8, 16]
    assert 0 < times.seconds(1) <= times.seconds(4) <= times.seconds(16)
    assert times.seconds_to_read(1) > 0
    assert loaded.main.forget() == 0
    assert Driven(loaded.main).open(1, [1] * 50, 128) == 0  # nothing of a client's prompt is cached


def test_the_least_time_of_a_pass_is_kept() -> None:
    runner, times = ScriptedRunner(), []
    runner.abilities = replace(runner.abilities, tried_passes={1: 2.0, 8: 3.0})
    for seconds in (4.0, 1.0, 4.0):
        time_passes(runner, 64, all_rows=False, clock=count(0.0, seconds).__next__)
        times.append(dict(runner.abilities.tried_passes))
    assert times == [{1: 2.0, 8: 3.0}, {1: 1.0, 8: 3.0}, {1: 1.0, 8: 3.0}]


@pytest.mark.parametrize(("uses_host_cores", "seconds", "prompt"), [(True, 64.0, 32), (False, 1.0, 64)])
def test_first_passes_of_a_device_do_not_count(uses_host_cores: bool, seconds: float, prompt: int) -> None:
    runner = ScriptedRunner()
    runner.abilities = replace(runner.abilities, uses_host_cores=uses_host_cores)
    clock = chain([0.0, 64.0] * 3, [0.0, 1.0] * 3)  # of a chunk and two decoded tokens
    time_passes(runner, 64, all_rows=False, clock=clock.__next__)
    assert runner.abilities.tried_passes == {1: seconds}
    assert runner.abilities.tried_prompt_token == seconds / prompt


def test_a_model_that_cannot_be_run_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedRunner, "forward", Mock(side_effect=RunnerFailed("no kernel")))
    with pytest.raises(RunnerFailed, match="no kernel"):
        warm_up(LoadedModel(ScriptedRunner(), reason="scripted"), 64)


def test_old_library_refuses_profiling_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime-genai 0.13 does with ONNX Runtime 1.24."""

    def refuse(runner: ScriptedRunner, sequence: int, option: str, value: str) -> None:
        if option == "enable_profiling" and value != "0":
            raise RunnerFailed("onnxruntime-genai: enable_profiling requires ONNX Runtime 1.25 or later")

    monkeypatch.setattr(ScriptedRunner, "set_runtime_option", refuse)
    loaded = LoadedModel(ScriptedRunner(), reason="scripted")
    warm_up(loaded, 64)
    assert "enable_profiling requires ONNX Runtime 1.25 or later" in loaded.why_no_profile


def test_that_profiles_can_be_made_is_tried_without_making_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_model(spec(128))
    warm_up(loaded, 64)
    assert loaded.why_no_profile == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_model_is_known_to_score_prompts_by_trying_it(tmp_path: Path, is_pruned: bool) -> None:
    """A graph with a pruned head does so in a batch only."""
    model_dir = tmp_path / "model" if is_pruned else DEMO
    if is_pruned:
        make_pruned_model(model_dir)
    loaded = load_model(spec(128, model_dir=model_dir))
    assert scores_prompts(loaded)
    assert scores_prompts(load_model(spec(128, model_dir=model_dir, scheduler="generator"))) == (not is_pruned)
    assert isinstance(loaded.main, BatchedRunner)
    assert loaded.main.slots.num_running == 0
