"""The passes that an engine runs before it is ready, which leave nothing behind."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

import pytest
from _models.driven import Driven

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


class Shapes(ScriptedRunner):
    """Records the shapes that were run."""

    def __init__(self) -> None:
        super().__init__()
        self.prefilled: list[int] = []
        self.decoded: list[int] = []

    def forward(self, chunks: Sequence[ScheduledChunk]) -> list[Scores]:
        if chunks[0].decodes:
            self.decoded.append(len(chunks))
        else:
            self.prefilled.append(chunks[0].num_tokens)
        return super().forward(chunks)


@pytest.mark.parametrize(
    ("max_length", "prefilled", "decoded"), [(2048, [32], [1, 1]), (20, [18], [1, 1]), (3, [], [])]
)
def test_a_chunk_is_read_and_tokens_are_decoded(max_length: int, prefilled: list[int], decoded: list[int]) -> None:
    runner = Shapes()
    runner.model = with_limit(runner.model, max_length)
    warm_up(LoadedModel(runner, reason="scripted"), 128)
    assert (runner.prefilled, runner.decoded) == (prefilled, decoded)


def test_warm_up_decodes_one_row_and_all_rows_and_reads_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    forward = BatchedRunner.forward

    def recorded(self: BatchedRunner, chunks: Sequence[ScheduledChunk]) -> list[Scores]:
        if chunks[0].decodes:
            decoded.append(sum(chunk.num_tokens for chunk in chunks))
        return forward(self, chunks)

    monkeypatch.setattr(BatchedRunner, "forward", recorded)
    loaded = load_model(spec(128))
    warm_up(loaded, 64)
    assert decoded == [1, 1, 4, 4, 4, 8, 16]
    assert loaded.batch is not None
    times = StepTimeModel(loaded.main.abilities.tried_passes, loaded.main.abilities.tried_prompt_token)
    assert list(loaded.main.abilities.tried_passes) == [1, 4, 8, 16]
    assert 0 < times.seconds(1) <= times.seconds(4) <= times.seconds(16)
    assert times.seconds_to_read(1) > 0
    assert loaded.main.forget() == 0
    prompt = [1] * 50
    assert Driven(loaded.main).open(1, prompt, 128) == 0  # nothing of a client's prompt is cached


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


def test_a_model_that_cannot_be_run_is_not_ready() -> None:
    class Failing(ScriptedRunner):
        def forward(self, chunks: Sequence[ScheduledChunk]) -> list[Scores]:
            raise RunnerFailed("no kernel")

    with pytest.raises(RunnerFailed, match="no kernel"):
        warm_up(LoadedModel(Failing(), reason="scripted"), 64)


class OfAnOldLibrary(ScriptedRunner):
    """A runner whose library refuses the option, as onnxruntime-genai 0.13 does with ONNX Runtime 1.24."""

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        if option == "enable_profiling" and value != "0":
            raise RunnerFailed("onnxruntime-genai: enable_profiling requires ONNX Runtime 1.25 or later")
        super().set_runtime_option(sequence, option, value)


def test_old_library_refuses_profiling_with_a_reason() -> None:
    loaded = LoadedModel(OfAnOldLibrary(), reason="scripted")
    warm_up(loaded, 64)
    why = loaded.why_no_profile
    assert why is not None
    assert "enable_profiling requires ONNX Runtime 1.25 or later" in why


def test_that_profiles_can_be_made_is_tried_without_making_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_model(spec(128))
    warm_up(loaded, 64)
    assert loaded.why_no_profile == ""
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_known_to_score_prompts_by_trying_it() -> None:
    loaded = load_model(spec(128))
    assert scores_prompts(loaded)
    assert scores_prompts(load_model(spec(128, scheduler="generator")))
    assert scores_prompts(LoadedModel(ScriptedRunner(), reason="scripted"))
    assert isinstance(loaded.main, BatchedRunner)
    assert loaded.main.slots.num_running == 0


def test_graph_with_a_pruned_head_scores_prompts_in_a_batch_only(tmp_path: Path) -> None:
    make_pruned_model(tmp_path / "model")
    loaded = load_model(spec(128, model_dir=tmp_path / "model"))
    assert isinstance(loaded.main, BatchedRunner)
    assert scores_prompts(loaded)
    assert not scores_prompts(load_model(spec(128, model_dir=tmp_path / "model", scheduler="generator")))
    assert loaded.main.slots.num_running == 0
