"""What an engine runs before it is ready, and that nothing of it stays."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from genai_server.engine.runners.base import Opening
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.choose import load_runners
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.scores import Logits
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.runners.warm_up import scores_prompts, warm_up
from genai_server.errors import RunnerFailed
from tests.engine.runners.test_choose import spec
from tests.pruned_model import make_pruned_model


class Shapes(ScriptedRunner):
    """Writes down which shapes were run."""

    def __init__(self) -> None:
        super().__init__()
        self.prefilled: list[int] = []
        self.decoded: list[int] = []

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        if len(tokens) > 1:  # its decode is a prefill of one
            self.prefilled.append(len(tokens))
        return super().prefill(sequence, tokens, positions=positions)

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        self.decoded.append(len(sequences))
        return super().decode(sequences, tokens)


def test_a_chunk_is_read_and_tokens_are_decoded() -> None:
    runner = Shapes()
    warm_up(RunnerPair(runner, reason="scripted"), 128, 2048)
    assert runner.prefilled == [128]
    assert runner.decoded == [1, 1]


def test_a_chunk_is_no_longer_than_what_is_served() -> None:
    runner = Shapes()
    warm_up(RunnerPair(runner, reason="scripted"), 128, 40)
    assert runner.prefilled == [38]


def test_where_almost_nothing_fits_nothing_is_run() -> None:
    runner = Shapes()
    warm_up(RunnerPair(runner, reason="scripted"), 128, 3)
    assert runner.prefilled == []


def test_a_batch_is_decoded_alone_and_with_all_rows_and_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = BatchedRunner.decode

    def recorded(self: BatchedRunner, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        decoded.append(len(sequences))
        return decode(self, sequences, tokens)

    monkeypatch.setattr(BatchedRunner, "decode", recorded)
    runners = load_runners(spec(128))
    warm_up(runners, 64, 128)
    assert decoded == [1, 1, 4, 4]
    assert runners.batched is not None
    assert runners.forget() == 0
    prompt = [1] * 50
    assert runners.batched.open(1, prompt, Opening(128)) == 0  # nothing of a client's prompt is there already


def test_a_model_that_cannot_be_run_is_not_ready() -> None:
    class Failing(ScriptedRunner):
        def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
            raise RunnerFailed("no kernel")

    with pytest.raises(RunnerFailed, match="no kernel"):
        warm_up(RunnerPair(Failing(), reason="scripted"), 64, 128)


class OfAnOldLibrary(ScriptedRunner):
    """Its library refuses the switch as onnxruntime-genai 0.13 does beside ONNX Runtime 1.24."""

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        if option == "enable_profiling" and value != "0":
            raise RunnerFailed("onnxruntime-genai: enable_profiling requires ONNX Runtime 1.25 or later")
        super().set_runtime_option(sequence, option, value)


def test_with_an_old_library_the_profiling_switch_is_refused_with_its_reason() -> None:
    runners = RunnerPair(OfAnOldLibrary(), reason="scripted")
    warm_up(runners, 64, 128)
    why = runners.no_profile()
    assert why is not None
    assert "enable_profiling requires ONNX Runtime 1.25 or later" in why


def test_that_profiles_can_be_made_is_tried_without_making_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runners = load_runners(spec(128))
    warm_up(runners, 64, 128)
    assert runners.no_profile() is None
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_known_to_score_prompts_by_trying_it() -> None:
    runners = load_runners(spec(128))
    assert scores_prompts(runners, 128)
    assert scores_prompts(RunnerPair(runners.generator, reason="alone"), 128)
    assert scores_prompts(RunnerPair(ScriptedRunner(), reason="scripted"), 128)
    assert isinstance(runners.batched, BatchedRunner)
    assert runners.batched.slots.num_running == 0


def test_a_graph_with_a_pruned_head_scores_no_prompts_on_either_runner(tmp_path: Path) -> None:
    make_pruned_model(tmp_path / "model")
    runners = load_runners(msgspec.structs.replace(spec(128), model_dir=str(tmp_path / "model")))
    assert isinstance(runners.batched, BatchedRunner)
    assert not scores_prompts(runners, 128)
    assert not scores_prompts(RunnerPair(runners.generator, reason="alone"), 128)
    assert runners.batched.slots.num_running == 0
