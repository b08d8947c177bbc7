"""A graph that gives the logits of the last token only, as `export` builds them, runs batched all the same."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from genai_server.engine.decoder_graph import DecoderGraph, read_decoder_graph
from genai_server.engine.model_files import check_model_directory
from genai_server.engine.runners.base import Opening
from genai_server.engine.runners.batched import BatchedRunner, BatchLimits
from genai_server.errors import RunnerFailed
from tests.running_server import DEMO

HEAD = "/lm_head/MatMul_Q8"
PROMPT = [5, 9, 14, 200, 31, 7]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with the cut before its head that the builder's prune_lm_head makes."""
    directory = tmp_path_factory.mktemp("pruned") / "model"
    shutil.copytree(DEMO, directory)
    model = onnx.load(str(directory / "model.onnx"), load_external_data=False)
    graph = model.graph
    place, head = next((place, node) for place, node in enumerate(graph.node) if node.name == HEAD)
    last, axis = helper.make_tensor("last", TensorProto.INT64, [], [-1]), helper.make_tensor("axis", 7, [1], [1])
    graph.initializer.extend([last, axis])
    graph.node.insert(place, helper.make_node("Gather", [head.input[0], "last"], ["last_state"], axis=1))
    graph.node.insert(place + 1, helper.make_node("Unsqueeze", ["last_state", "axis"], ["last_states"]))
    head.input[0] = "last_states"
    logits = next(output for output in graph.output if output.name == "logits")
    logits.type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, str(directory / "model.onnx"))
    return directory


def runner(directory: Path) -> tuple[DecoderGraph, BatchedRunner]:
    graph = read_decoder_graph(directory)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(graph.path), options, providers=["CPUExecutionProvider"])
    limits = BatchLimits(num_slots=4, max_length=64)
    return graph, BatchedRunner(graph, session, check_model_directory(directory), limits)


def test_such_a_graph_is_known_by_the_shape_of_its_logits(pruned: Path) -> None:
    assert read_decoder_graph(pruned).gives_last_logits_only
    assert not read_decoder_graph(DEMO).gives_last_logits_only


def test_its_prompts_and_steps_give_what_the_whole_graph_gives(pruned: Path) -> None:
    found = []
    for directory in (DEMO, pruned):
        _, batched = runner(directory)
        for sequence in (1, 2):
            batched.open(sequence, PROMPT, Opening(64))
        told = [batched.prefill(sequence, PROMPT[sequence:]) for sequence in (1, 2)]
        found.append(np.stack([*told, *batched.decode([1, 2], [3, 4])]))
    whole, last = found
    assert whole.shape == last.shape
    # One row of the head is another kernel's work than several, and rounds otherwise.
    np.testing.assert_allclose(last, whole, atol=0.05 * float(whole.std()))
    assert (last.argmax(-1) == whole.argmax(-1)).all()


def test_the_logits_within_a_prompt_are_refused_where_there_are_none(pruned: Path) -> None:
    _, batched = runner(pruned)
    batched.open(1, PROMPT, Opening(64))
    with pytest.raises(RunnerFailed, match=f"gives logits for 1 of {len(PROMPT)} tokens of a prompt"):
        batched.prefill(1, PROMPT, positions=True)
