"""Decoders whose weights have any form, with genai-server-native's operators next to ONNX Runtime's."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from _models.driven import Driven, engine_spec

from genai_server.engine.graph_rewriting.packed_products import why_not_packed
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.load_model import load_batched
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.scores import Logits
from tests.requantized import write_experts, write_floats, write_halves, write_requantized
from tests.running_server import DEMO, ROOT
from tests.tokens import text

MAX_LENGTH = 256


def logits(runner: Runner) -> Logits:
    """Those after a prompt, and after a token behind it."""
    driven, prompt = Driven(runner), text(90, 3)
    driven.open(1, prompt, MAX_LENGTH)
    return np.stack([driven.prefill(1, prompt).copy(), driven.read((1, [9], True))[0].logits[-1].copy()])


@pytest.mark.parametrize("has_cache", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("write", "write_reference", "limit"),
    [
        (write_floats, write_floats, 1e-4),
        (write_halves, write_floats, 0.02),
        # Where activations are rounded to 8 bits, a difference in the last bit of a value grows.
        (write_experts, write_experts, 0.15),
        (write_requantized, write_requantized, 0.15),
    ],
)
def test_a_decoder_computes_what_onnx_runtime_does(
    write: Callable[[Path, Path], Path],
    write_reference: Callable[[Path, Path], Path],
    limit: float,
    has_cache: bool,
    tmp_path: Path,
) -> None:
    library = OgGeneratorRunner(write_reference(DEMO, tmp_path / "reference"), "cpu", threads=1)
    spec = engine_spec(write(DEMO, tmp_path / "model"), 2, MAX_LENGTH, tmp_path / "cache" if has_cache else None)
    runner = load_batched(spec, tmp_path / "model", library.model)
    assert not runner.abilities.why_not_exact
    ours, expected = logits(runner), logits(library)
    assert np.abs(ours - expected).max() < limit * expected.std()


def decoders() -> list[Path]:
    folders = [*(ROOT / "models").iterdir(), *(ROOT / "tests" / "built_models").iterdir()]
    configs = {folder: folder / "genai_config.json" for folder in folders if (folder / "genai_config.json").is_file()}
    named = {
        folder: json.loads(config.read_text())["model"]["decoder"]["filename"] for folder, config in configs.items()
    }
    return sorted(folder / name for folder, name in named.items())


@pytest.mark.parametrize("path", decoders(), ids=lambda path: path.parent.name)
def test_all_products_of_the_model_builders_graphs_can_be_packed(path: Path) -> None:
    graph = onnx.load(str(path), load_external_data=False).graph
    assert why_not_packed(graph) is None
