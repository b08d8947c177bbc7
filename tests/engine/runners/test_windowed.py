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
    sliding = {"window_size": WINDOW, "slide_key_value_cache": False, "slide_inputs": False, "cache_slack": 0}
    with edited_config(target) as config:
        config["model"]["decoder"]["sliding_window"] = sliding | {"layers": list(range(layers)) if in_graph else []}
    with edited_graph(target) as graph:
        nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"] if in_graph else []
        for node in nodes[:layers]:
            kept = [attribute for attribute in node.attribute if attribute.name != "local_window_size"]
            del node.attribute[:]
            windows = {"local_window_size": WINDOW, "sliding_window_cache": 1}
            node.attribute.extend([*kept, *(onnx.helper.make_attribute(*each) for each in windows.items())])
    return target


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which all layers but the last keep only a window, so that distant tokens still matter."""
    config = json.loads((DEMO / "genai_config.json").read_text(encoding="utf-8"))
    num_layers = config["model"]["decoder"]["num_hidden_layers"]
    return write_windowed(tmp_path_factory.mktemp("models") / "windowed", num_layers - 1)


@pytest.fixture(scope="module")
def generator(windowed: Path) -> OgGeneratorRunner:
    return OgGeneratorRunner(windowed, "cpu", threads=1)


@pytest.mark.parametrize(
    ("lengths", "chunk"),
    [((120, 3, WINDOW - 2, 60), 60), ((238, 160, 100), 40)],
    ids=["on both sides of the window", "far behind it"],
)
def test_rows_of_any_length_match_the_librarys(
    windowed: Path, generator: OgGeneratorRunner, lengths: tuple[int, ...], chunk: int
) -> None:
    """Rows that are decoded together prefer the tokens of the library's greedy answers, or others by less than 0.1.

    The rounding of activations to 8 bits makes that much of a logit of a last bit.
    """
    runner = Driven(batched_runner(windowed, num_slots=len(lengths), max_length=MAX_LENGTH))
    prompts = [text(length, number) for number, length in enumerate(lengths)]
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


@pytest.mark.parametrize("cache_type", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("threads", [1, 3])
def test_drafts_and_prefixes_behind_the_window_change_no_bit(windowed: Path, cache_type: type, threads: int) -> None:
    graph = replace(read_decoder_graph(windowed), cache_type=cache_type)
    session = open_session(graph, threads)
    long, other = text(230), text(60, 1)
    runner = Driven(batched_runner(windowed, graph=graph, session=session, max_length=MAX_LENGTH))
    runner.open(0, long, MAX_LENGTH)
    runner.read((0, long, False))
    tokens = [*long[:90], *other]
    assert runner.open(1, tokens, MAX_LENGTH) == 90
    drafting, reading = list[Logits](), list[Logits]()
    for start in range(0, len(other), 20):  # next to a row that drafts, most of which is cut off
        scores = runner.read((0, [7], True, [5, 6, 7, 8]), (1, other[start : start + 20], False))
        drafting.extend(scores[0].logits[:2].copy())
        reading.append(scores[1].logits[-1].copy())
        runner.accept(0, [5])
    # The same tokens, each read alone.
    runner.open(2, tokens, MAX_LENGTH, reuse=False)
    every = np.concatenate(
        [runner.prefill(2, tokens[start : start + 30], positions=True).copy() for start in range(0, len(tokens), 30)]
    )
    assert np.array_equal(every[[109, 129, 149]], reading)
    runner.open(3, long, MAX_LENGTH, reuse=False)
    runner.prefill(3, long)
    for token, logits in zip((7, 5) * 3, drafting, strict=True):
        assert np.array_equal(runner.decode([3], [token])[0], logits)


def test_a_configured_window_that_no_layer_has_is_no_limit(tmp_path: Path, generator: OgGeneratorRunner) -> None:
    model_dir = write_windowed(tmp_path / "claimed", 0, in_graph=False)
    claimed, whole = (OgGeneratorRunner(path, "cpu", threads=1) for path in (model_dir, DEMO))
    expected = greedy(whole, text(120), STEPS)
    assert greedy(claimed, text(120), STEPS) == expected
    assert read_decoder_graph(model_dir).window == 0
    assert greedy(batched_runner(model_dir, max_length=MAX_LENGTH), text(120), STEPS) == expected
    # A window in the graph makes a difference.
    assert any(greedy(whole, text(120, seed), STEPS) != greedy(generator, text(120, seed), STEPS) for seed in range(4))
