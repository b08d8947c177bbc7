"""Graphs of the real model builder: which of them fit the batch, and the batch's answers.

tests/built_models/README.md says where the files come from.
"""

import msgspec
import numpy as np
import onnx
import pytest
from _models.driven import Driven

from genai_server.config.settings import Settings
from genai_server.config.sources import engine_spec
from genai_server.engine.decoder_graph import LayerState
from genai_server.engine.graph_rewriting.output_head import find_head
from genai_server.engine.graph_rewriting.ragged import make_ragged
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners.load_batched import load_batched
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.scores import Logits
from tests.engine.model_runners import greedy_logits
from tests.running_server import ROOT

BUILT = ROOT / "tests" / "built_models"
ALL = sorted(path.parent.name for path in BUILT.glob("*/model.onnx"))
LONG_ROPES = ["phi-3-128k", "phi-4-mini"]
ORIGINAL_CONTEXT = 128
VOCAB, STEPS = 300, 20


@pytest.mark.parametrize(
    ("name", "switches_at", "window"),
    [
        ("phi-3-128k", 128, 0),
        ("phi-4-mini", 128, 0),
        ("llama-3", None, 0),
        ("llama-3-pruned", None, 0),
        ("gemma-2", None, 32),
        ("gpt-oss", None, 32),
        ("qwen-3-vl", None, 0),
    ],
)
def test_a_graph_of_the_builder_fits_the_batch(name: str, switches_at: int | None, window: int) -> None:
    graph = read_decoder_graph(BUILT / name)
    assert (graph.switches_at, graph.window) == (switches_at, window)


def test_a_graph_with_convolutions_has_their_states() -> None:
    graph = read_decoder_graph(BUILT / "lfm2")
    assert graph.past_names == ("past_key_values.1.key", "past_key_values.1.value")
    assert graph.conv_states == (LayerState("past.0.conv", "present.0.conv", (2, 32), np.float32),)
    assert graph.recurrent_states == ()
    assert graph.bytes_per_row == 32 * 2 * 4


def test_a_graph_with_linear_attention_has_states_of_both_kinds() -> None:
    graph = read_decoder_graph(BUILT / "qwen-3.5")
    assert graph.past_names == ("past_key_values.1.key", "past_key_values.1.value")
    assert [state.past for state in (*graph.conv_states, *graph.recurrent_states)] == [
        "past.0.conv",
        "past.0.recurrent",
    ]
    assert graph.recurrent_states[0].shape == (4, 16, 16)


@pytest.mark.parametrize(("name", "axes"), [("qwen-3-vl", 3), ("qwen-3.5", 3), ("phi-3-128k", 0), ("llama-3", 0)])
def test_positions_may_have_an_axis_for_images(name: str, axes: int) -> None:
    assert read_decoder_graph(BUILT / name).position_axes == axes


@pytest.mark.parametrize("name", ALL)
def test_the_head_reads_the_last_norm(name: str) -> None:
    graph = read_decoder_graph(BUILT / name)
    head = find_head(onnx.load(str(graph.path), load_external_data=False).graph, graph.logits)
    assert head is not None
    is_last_norm = "final_norm" in head.states or head.states == graph.hidden_output
    assert is_last_norm != graph.gives_last_logits_only
    assert graph.gives_last_logits_only == (name == "llama-3-pruned")


@pytest.mark.parametrize("name", ALL)
def test_a_graph_of_the_builder_can_be_made_ragged(name: str) -> None:
    decoder = read_decoder_graph(BUILT / name)
    model = onnx.load(str(decoder.path), load_external_data=False)
    make_ragged(model.graph, decoder)
    operators = {node.op_type for node in model.graph.node}
    assert not operators & {"CausalConvWithState", "ReduceSum"}  # replaced, and left over of the mask


def batch(name: str, generator: OgGeneratorRunner, max_length: int) -> Driven:
    spec = engine_spec(Settings.model_validate({}), "cpu", str(BUILT / name))
    spec = msgspec.structs.replace(spec, max_length=max_length, max_batch_size=4, cache_dir="", threads=1)
    return Driven(load_batched(spec, BUILT / name, generator.model))


@pytest.mark.parametrize("name", LONG_ROPES)
def test_a_long_rope_in_the_batch_gives_what_a_generator_gives(name: str) -> None:
    generator = OgGeneratorRunner(BUILT / name, "cpu", threads=1)
    batched = batch(name, generator, 2 * ORIGINAL_CONTEXT)
    chance = np.random.default_rng(1)
    # The second row ends at the original context length, and the next two are longer from the start.
    lengths = (5, ORIGINAL_CONTEXT - STEPS, ORIGINAL_CONTEXT + 1, ORIGINAL_CONTEXT + 80)
    prompts = [chance.integers(3, VOCAB, length).tolist() for length in lengths]
    expected = [greedy_logits(generator, prompt, STEPS) for prompt in prompts]
    newest: list[Logits] = []
    for number, prompt in enumerate(prompts):
        batched.open(number, prompt, 2 * ORIGINAL_CONTEXT)
        newest.append(batched.prefill(number, prompt).copy())
    for step in range(STEPS):
        for found, logits in zip(newest, expected, strict=True):
            np.testing.assert_allclose(found, logits[step], atol=1e-3)
        newest = list(batched.decode(range(4), [int(logits[step].argmax()) for logits in expected]).copy())
    assert all(len(set(logits.argmax(axis=-1))) > STEPS / 2 for logits in expected)
