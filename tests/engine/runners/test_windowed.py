"""Models with sliding windows: the demo model, changed as the model builder writes them."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from genai_server.engine.kv_cache.cpu_buffers import CpuBuffers
from genai_server.engine.kv_cache.layout import WINDOW_STEP
from genai_server.engine.kv_cache.row import SlotSpan
from genai_server.engine.model.graph import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.scheduling.scheduler_output import Read, Step
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.messages.generation_request import GenerationRequest
from scripts._models.driven import Driven
from tests.engine.model_runners import batched_runner, greedy, profiled_answer
from tests.model_edits import edited_config, edited_graph
from tests.running_server import DEMO
from tests.tokens import text

WINDOW = 24
MAX_LENGTH = 256
STEPS = 12


def write_windowed(target: Path, layers: int, *, in_graph: bool = True) -> Path:
    """The demo model with windows in its first `layers` layers, or with a configuration that only claims windows."""
    shutil.copytree(DEMO, target)
    with edited_config(target) as config:
        config["model"]["decoder"]["sliding_window"] = {
            "window_size": WINDOW,
            "slide_key_value_cache": False,
            "slide_inputs": False,
            "layers": list(range(layers)) if in_graph else [],
            "cache_slack": 0,
        }
    with edited_graph(target) as graph:
        nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"] if in_graph else []
        for node in nodes[:layers]:
            kept = [attribute for attribute in node.attribute if attribute.name != "local_window_size"]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.append(onnx.helper.make_attribute("local_window_size", WINDOW))
            node.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))
    return target


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which all layers but the last keep only a window, so that distant tokens still matter."""
    layers = json.loads((DEMO / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
    return write_windowed(tmp_path_factory.mktemp("models") / "windowed", layers["num_hidden_layers"] - 1)


@pytest.fixture(scope="module")
def generator(windowed: Path) -> OgGeneratorRunner:
    return OgGeneratorRunner(windowed, "cpu", threads=1)


def test_rows_on_both_sides_of_the_window_match_the_librarys(windowed: Path, generator: OgGeneratorRunner) -> None:
    runner = Driven(batched_runner(windowed, max_length=MAX_LENGTH))
    prompts = {number: text(length) for number, length in enumerate((120, 3, WINDOW - 2, 60))}
    answers: dict[int, list[int]] = {}
    for number, prompt in prompts.items():
        runner.open(number, prompt, MAX_LENGTH)
        for start in range(0, len(prompt), 60):
            logits = runner.prefill(number, prompt[start : start + 60])
        answers[number] = [int(logits.argmax())]
    for _ in range(STEPS - 1):
        rows = runner.decode(list(prompts), [answers[number][-1] for number in prompts])
        for number, row in enumerate(rows):
            answers[number].append(int(row.argmax()))
    assert answers == {number: greedy(generator, prompt, STEPS) for number, prompt in prompts.items()}


def test_rows_far_behind_the_window_match_the_librarys(
    windowed: Path, generator: OgGeneratorRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    bind = CpuBuffers.bind

    def recorded(self: CpuBuffers, binding: Any, spans: Sequence[SlotSpan]) -> None:
        starts.extend(span.window_start for span in spans)
        bind(self, binding, spans)

    monkeypatch.setattr(CpuBuffers, "bind", recorded)
    runner = Driven(batched_runner(windowed, num_slots=3, max_length=MAX_LENGTH))
    prompts = {number: text(length, number) for number, length in enumerate((238, 160, 100))}
    answers: dict[int, list[int]] = {}
    for number, prompt in prompts.items():
        runner.open(number, prompt, MAX_LENGTH)
        for start in range(0, len(prompt), 40):
            logits = runner.prefill(number, prompt[start : start + 40])
        answers[number] = [int(logits.argmax())]
    for _ in range(STEPS - 1):
        rows = runner.decode(list(prompts), [answers[number][-1] for number in prompts])
        for number, row in enumerate(rows):
            answers[number].append(int(row.argmax()))
    assert set(starts) == {0, WINDOW_STEP, 2 * WINDOW_STEP}
    assert answers == {number: greedy(generator, prompt, STEPS) for number, prompt in prompts.items()}


@pytest.mark.parametrize("cache_type", [np.float32, np.float16])
def test_drafts_and_prefixes_behind_the_window_change_no_logits(
    windowed: Path, cache_type: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = replace(read_decoder_graph(windowed), cache_type=cache_type)
    session, found = open_session(graph, 1, optimized=False), []
    long, other = text(230), text(60, 1)
    for step in (8, MAX_LENGTH):
        monkeypatch.setattr("genai_server.engine.kv_cache.layout.WINDOW_STEP", step)
        runner = Driven(batched_runner(windowed, graph=graph, session=session, num_slots=3, max_length=MAX_LENGTH))
        given: list[Scores] = []
        runner.open(0, long, MAX_LENGTH)
        given += map(Scores.copy, runner.read((0, long, False)))
        assert runner.open(1, [*long[:90], *other], MAX_LENGTH) == 90
        for start in range(0, len(other), 20):  # next to a row that drafts, most of which is cut off
            reads = (0, [7], True, [5, 6, 7, 8]), (1, other[start : start + 20], False)
            given += map(Scores.copy, runner.read(*reads))
            runner.accept(0, [5])
        given += map(Scores.copy, runner.read((0, [9], True), (1, [9], True, [3, 4])))
        found.append(np.concatenate([scores.logits for scores in given]))
    shifted, complete = found
    np.testing.assert_allclose(shifted, complete, atol=1e-3)


def test_keys_and_values_of_all_tokens_are_kept(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, kept = text(200), []
    for step in (WINDOW_STEP, MAX_LENGTH):
        monkeypatch.setattr("genai_server.engine.kv_cache.layout.WINDOW_STEP", step)
        runner = batched_runner(windowed, num_slots=1, max_length=MAX_LENGTH)
        greedy(Driven(runner), prompt, STEPS)
        assert isinstance(runner.buffers, CpuBuffers)
        kept.append([array[0, :, : len(prompt) + STEPS - 1] for array in runner.buffers.arrays])
    for shifted, complete in zip(*kept, strict=True):
        np.testing.assert_allclose(shifted, complete, atol=1e-4)


def test_a_past_longer_than_the_window_is_used_again(windowed: Path, generator: OgGeneratorRunner) -> None:
    runner = Driven(batched_runner(windowed, max_length=MAX_LENGTH))
    longer = text(100)
    shorter = [*longer[:50], *text(8, 1)]
    greedy(runner, longer, STEPS)
    assert runner.open(99, shorter, MAX_LENGTH) == 50
    first = int(runner.prefill(99, shorter[50:]).argmax())
    runner.close(99)
    assert first == greedy(generator, shorter, 1)[0]


@pytest.mark.parametrize("first", [0, 4])
def test_profiled_answers_are_the_usual_ones(
    windowed: Path, generator: OgGeneratorRunner, tmp_path: Path, first: int
) -> None:
    batch, prompt = batched_runner(windowed, max_length=MAX_LENGTH), text(70)
    sequence = Scheduled(1, (0, 1), GenerationRequest("r", prompt, STEPS, MAX_LENGTH), lambda: 0.0)
    assert profiled_answer(batch, sequence, STEPS, tmp_path, first=first) == greedy(generator, prompt, STEPS)


@pytest.mark.parametrize("exact", [False, True])
def test_exact_sequence_reuses_no_answer_tokens_of_a_prompt(windowed: Path, exact: bool) -> None:
    batch = batched_runner(windowed, max_length=MAX_LENGTH)
    pair = RunnerPair(LoadedModel(batch, batch))
    prompt = text(40)
    sequence = Scheduled(
        1, (0, 1), GenerationRequest("r", prompt, 100, MAX_LENGTH, exact=exact), lambda: 0.0, reuses_past=True
    )
    pair.open(sequence)
    while sequence.num_produced < 8:
        sequence.append(int(pair.forward(Step([Read.next(sequence, sequence.num_unread)]))[0].last.argmax()))
    pair.close(sequence)
    other = Scheduled(
        2, (0, 2), GenerationRequest("o", sequence.tokens, 1, MAX_LENGTH, cache_prompt=False), lambda: 0.0
    )
    pair.open(other)
    pair.forward(Step([Read.next(other, other.num_unread)]))
    pair.open(sequence)
    assert sequence.num_read == (38 if exact else 46)
    for each in (sequence, other):
        pair.close(each)


def test_a_configured_window_that_no_layer_has_is_no_limit(tmp_path: Path) -> None:
    model_dir = write_windowed(tmp_path / "claimed", 0, in_graph=False)
    generator = OgGeneratorRunner(model_dir, "cpu", threads=1)
    expected = greedy(OgGeneratorRunner(DEMO, "cpu", threads=1), text(120), STEPS)
    assert greedy(generator, text(120), STEPS) == expected
    assert read_decoder_graph(model_dir).window == 0
    assert greedy(batched_runner(model_dir, max_length=MAX_LENGTH), text(120), STEPS) == expected


def test_the_window_matters(generator: OgGeneratorRunner) -> None:
    whole = OgGeneratorRunner(DEMO, "cpu", threads=1)
    assert any(greedy(whole, text(120, seed), STEPS) != greedy(generator, text(120, seed), STEPS) for seed in range(4))


@pytest.mark.parametrize("layers", [2, 6])
def test_a_pass_gives_the_bits_of_separate_passes(tmp_path: Path, layers: int) -> None:
    model_dir = write_windowed(tmp_path / "model", layers)
    session = open_session(read_decoder_graph(model_dir), 2, optimized=False)
    long, prompt, found = text(3 * WINDOW, 1), text(4 * WINDOW, 2), []
    for is_mixed in (False, True):
        runner = Driven(batched_runner(model_dir, session=session, max_length=MAX_LENGTH))
        runner.open(1, long, MAX_LENGTH, reuse=False)
        runner.prefill(1, long)
        runner.open(2, prompt, MAX_LENGTH, reuse=False)
        given = []
        for start in range(0, len(prompt), 32):
            decoding, reading = (1, [7], True), (2, prompt[start : start + 32], False)
            for step in [[decoding, reading]] if is_mixed else [[decoding], [reading]]:
                given += [scores.logits[-1].copy() for scores in runner.read(*step)]
        given.append(runner.decode([2], [5])[0])
        found.append(given)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
