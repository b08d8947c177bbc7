"""Graphs of the real model builder: which of them fit the batch.

tests/built_models/README.md says where the files come from.
"""

import onnx
import pytest

from genai_server.engine.graph_rewriting.ragged import find_head, make_ragged
from genai_server.engine.model.graph_reader import read_decoder_graph
from tests.running_server import ROOT

BUILT = ROOT / "tests" / "built_models"
ALL = sorted(path.parent.name for path in BUILT.glob("*/model.onnx"))


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
