"""Models with sliding windows: the demo model, changed as the model builder writes them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from _models.driven import Driven

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.session import open_session
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.scores import Logits
from tests.engine.model_runners import batched_runner, greedy
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


def assert_follows(runner: Driven, prompts: list[list[int]], chunk: int, generator: OgGeneratorRunner) -> None:
    """Rows that are decoded together prefer the tokens of the library's greedy answers, or others by less than 0.1.

    The rounding of activations to 8 bits makes that much of a logit of a last bit.
    """
    answers = [greedy(generator, prompt, STEPS) for prompt in prompts]
    for number, prompt in enumerate(prompts):
        runner.open(number, prompt, MAX_LENGTH)
        for start in range(0, len(prompt), chunk):
            logits = runner.prefill(number, prompt[start : start + chunk])
        assert logits[answers[number][0]] > logits.max() - 0.1
    for step in range(STEPS - 1):
        rows = runner.decode(list(range(len(prompts))), [answer[step] for answer in answers])
        for row, answer in zip(rows, answers, strict=True):
            assert row[answer[step + 1]] > row.max() - 0.1


def test_rows_on_both_sides_of_the_window_match_the_librarys(windowed: Path, generator: OgGeneratorRunner) -> None:
    runner = Driven(batched_runner(windowed, max_length=MAX_LENGTH))
    assert_follows(runner, [text(length) for length in (120, 3, WINDOW - 2, 60)], 60, generator)


def test_rows_far_behind_the_window_match_the_librarys(windowed: Path, generator: OgGeneratorRunner) -> None:
    runner = Driven(batched_runner(windowed, num_slots=3, max_length=MAX_LENGTH))
    assert_follows(runner, [text(length, number) for number, length in enumerate((238, 160, 100))], 40, generator)


@pytest.mark.parametrize("cache_type", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("threads", [1, 3])
def test_drafts_and_prefixes_behind_the_window_change_no_bit(windowed: Path, cache_type: type, threads: int) -> None:
    graph = replace(read_decoder_graph(windowed), cache_type=cache_type)
    session = open_session(graph, threads)
    long, other = text(230), text(60, 1)
    runner = Driven(batched_runner(windowed, graph=graph, session=session, num_slots=4, max_length=MAX_LENGTH))
    runner.open(0, long, MAX_LENGTH)
    runner.read((0, long, False))
    tokens = [*long[:90], *other]
    assert runner.open(1, tokens, MAX_LENGTH) == 90
    drafting: list[Logits] = []
    reading: list[Logits] = []
    for start in range(0, len(other), 20):  # next to a row that drafts, most of which is cut off
        scores = runner.read((0, [7], True, [5, 6, 7, 8]), (1, other[start : start + 20], False))
        drafting.append(scores[0].logits[:2].copy())
        reading.append(scores[1].logits[-1].copy())
        runner.accept(0, [5])
    # The same tokens, each read alone.
    runner.open(2, tokens, MAX_LENGTH, reuse=False)
    for start in range(0, len(tokens), 30):
        every = runner.prefill(2, tokens[start : start + 30], positions=True).copy()
        if start >= 90:
            places = [end - start - 1 for end in (110, 130, 150) if start < end <= start + 30]
            assert all(np.array_equal(every[place], reading.pop(0)) for place in places)
    assert not reading
    runner.open(3, long, MAX_LENGTH, reuse=False)
    runner.prefill(3, long)
    for pair in drafting:
        for token, logits in zip((7, 5), pair, strict=True):
            assert np.array_equal(runner.decode([3], [token])[0], logits)


def test_a_past_longer_than_the_window_is_used_again(windowed: Path, generator: OgGeneratorRunner) -> None:
    runner = Driven(batched_runner(windowed, max_length=MAX_LENGTH))
    longer = text(100)
    shorter = [*longer[:50], *text(8, 1)]
    greedy(runner, longer, STEPS)
    assert runner.open(99, shorter, MAX_LENGTH) == 50
    first = int(runner.prefill(99, shorter[50:]).argmax())
    runner.close(99)
    assert first == greedy(generator, shorter, 1)[0]


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
    session = open_session(read_decoder_graph(model_dir), 2)
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
