"""A graph that returns only the last token's logits, as `export` builds them, runs in a batch."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph import DecoderGraph, read_decoder_graph
from genai_server.engine.runners.batched import BatchedRunner, BatchLimits
from genai_server.errors import RunnerFailed
from scripts._models.driven import Driven
from tests.pruned_model import make_pruned_model
from tests.running_server import DEMO

PROMPT = [5, 9, 14, 200, 31, 7]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pruned") / "model"
    make_pruned_model(directory)
    return directory


def runner(directory: Path) -> tuple[DecoderGraph, Driven]:
    graph = read_decoder_graph(directory)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(graph.path), options, providers=["CPUExecutionProvider"])
    limits = BatchLimits(num_slots=4, max_length=64)
    return graph, Driven(BatchedRunner(graph, session, check_model_directory(directory), limits))


def test_such_a_graph_is_known_by_the_shape_of_its_logits(pruned: Path) -> None:
    assert read_decoder_graph(pruned).gives_last_logits_only
    assert not read_decoder_graph(DEMO).gives_last_logits_only


def test_its_prompts_and_steps_give_what_the_whole_graph_gives(pruned: Path) -> None:
    found = []
    for directory in (DEMO, pruned):
        _, batched = runner(directory)
        for sequence in (1, 2):
            batched.open(sequence, PROMPT, 64)
        prefilled = [batched.prefill(sequence, PROMPT[sequence:]) for sequence in (1, 2)]
        found.append(np.stack([*prefilled, *batched.decode([1, 2], [3, 4])]))
    whole, last = found
    assert whole.shape == last.shape
    # The head uses another kernel for one row than for several, which rounds otherwise.
    np.testing.assert_allclose(last, whole, atol=0.05 * float(whole.std()))
    assert (last.argmax(-1) == whole.argmax(-1)).all()


def test_prompt_logits_are_refused_for_a_pruned_graph(pruned: Path) -> None:
    _, batched = runner(pruned)
    batched.open(1, PROMPT, 64)
    with pytest.raises(RunnerFailed, match=f"gives logits for 1 of {len(PROMPT)} tokens of a prompt"):
        batched.prefill(1, PROMPT, positions=True)
