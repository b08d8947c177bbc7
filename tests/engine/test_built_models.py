"""Graphs of the real model builder: which of them fit the batch, and the batch's answers.

tests/built_models/README.md says where the files come from.
"""

import msgspec
import numpy as np
import pytest

from genai_server.config import Settings, engine_settings
from genai_server.engine.model.graph import DoesNotFit, LayerState, read_decoder_graph
from genai_server.engine.runners.choose import load_batched
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scores import Logits
from genai_server.messages.launch import EngineSpec
from scripts._models.driven import Driven
from tests.engine.model_runners import greedy_logits
from tests.running_server import ROOT

BUILT = ROOT / "tests" / "built_models"
LONG_ROPES = ["phi-3-128k", "phi-4-mini"]
ORIGINAL_CONTEXT = 128
VOCAB, STEPS = 300, 20


@pytest.mark.parametrize(
    ("name", "switches_at", "window"),
    [("phi-3-128k", 128, 0), ("phi-4-mini", 128, 0), ("llama-3", None, 0), ("gemma-2", None, 32)],
)
def test_a_graph_of_the_builder_fits_the_batch(name: str, switches_at: int | None, window: int) -> None:
    graph = read_decoder_graph(BUILT / name)
    assert (graph.switches_at, graph.window) == (switches_at, window)


def test_a_graph_with_convolutions_fits_the_batch_with_their_states() -> None:
    graph = read_decoder_graph(BUILT / "lfm2")
    assert graph.past_names == ("past_key_values.1.key", "past_key_values.1.value")
    assert graph.conv_states == (LayerState("past.0.conv", "present.0.conv", (64, 2), np.float32),)
    assert graph.bytes_per_row == 64 * 2 * 4


def batch(name: str, generator: OgGeneratorRunner, max_length: int) -> Driven:
    settings = engine_settings(Settings.model_validate({}))
    settings = msgspec.structs.replace(settings, max_length=max_length, max_batch_size=4, cache_dir="", threads=1)
    return Driven(load_batched(EngineSpec("cpu", str(BUILT / name), settings), BUILT / name, generator.model))


@pytest.mark.parametrize("name", LONG_ROPES)
def test_a_long_rope_does_not_fit_beyond_its_original_context(name: str) -> None:
    generator = OgGeneratorRunner(BUILT / name, "cpu", threads=1)
    with pytest.raises(DoesNotFit, match="more than 128 tokens, and GENAI_MAX_LENGTH allows 129"):
        batch(name, generator, ORIGINAL_CONTEXT + 1)


@pytest.mark.parametrize("name", LONG_ROPES)
def test_a_long_rope_in_the_batch_gives_what_a_generator_gives(name: str) -> None:
    generator = OgGeneratorRunner(BUILT / name, "cpu", threads=1)
    batched = batch(name, generator, ORIGINAL_CONTEXT)
    chance = np.random.default_rng(1)
    # The longest row ends at the original context length.
    prompts = [chance.integers(3, VOCAB, length).tolist() for length in (5, 60, ORIGINAL_CONTEXT - STEPS)]
    expected = [greedy_logits(generator, prompt, STEPS) for prompt in prompts]
    newest: list[Logits] = []
    for number, prompt in enumerate(prompts):
        batched.open(number, prompt, ORIGINAL_CONTEXT)
        newest.append(batched.prefill(number, prompt).copy())
    for step in range(STEPS):
        for found, logits in zip(newest, expected, strict=True):
            np.testing.assert_allclose(found, logits[step], atol=1e-3)
        newest = list(batched.decode([0, 1, 2], [int(logits[step].argmax()) for logits in expected]).copy())
    assert all(len(set(logits.argmax(axis=-1))) > STEPS / 2 for logits in expected)
