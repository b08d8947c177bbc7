"""Vectors and scores of complete texts, on the demo models."""

import json
import math
import shutil
import threading
from collections import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from _models.driven import Driven

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.pooled import DISABLED_FUSIONS, PooledRunner, _batches
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Logits
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField, ModelDirectoryError
from genai_server.messages.generation_request import GenerationRequest, PooledText
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from tests.model_edits import edited_graph
from tests.running_server import DEMO, ROOT

VECTORS, SCORES = ROOT / "models" / "demo-embeddings", ROOT / "models" / "demo-reranker"
TRUE, FALSE = 300, 400


@pytest.fixture(scope="module")
def vectors() -> Iterator[PooledRunner]:
    yield PooledRunner(VECTORS, 1, DEFAULT_OPTIONS)


def row(*texts: abc.Sequence[int], second: int = 0, low_priority: bool = False) -> ScheduledChunk:
    about = [PooledText(len(text), second) for text in texts]
    tokens = [token for text in texts for token in text]
    request = GenerationRequest("r", tokens, 0, len(tokens), texts=about, low_priority=low_priority)
    return ScheduledChunk.next(Sequence(0, (0, 0), request, lambda: 0.0), len(tokens), texts=about)


def text(length: int, first: int = 5) -> list[int]:
    return [2, *(first + number % 7 for number in range(length - 2)), 3]


def read(runner: PooledRunner, *rows: ScheduledChunk) -> list[Logits]:
    found = [scores.vectors for scores in runner.forward(rows)]
    assert all(vectors is not None for vectors in found)
    return [vectors for vectors in found if vectors is not None]


def test_a_text_has_the_same_vector_wherever_it_is_read(vectors: PooledRunner) -> None:
    lengths = [3, 200, 4, 60, 58, 3]
    texts = [text(length, length) for length in lengths]
    (together,) = read(vectors, row(*texts))
    for alone, among in zip(texts, together, strict=True):
        np.testing.assert_allclose(read(vectors, row(alone))[0][0], among, atol=1e-5)
    first, second = read(vectors, row(*texts[:2]), row(*texts[2:]))
    np.testing.assert_allclose(np.concatenate([first, second]), together, atol=1e-5)


def test_vectors_have_length_1_where_the_directory_says_so(vectors: PooledRunner) -> None:
    ((vector,),) = read(vectors, row(text(9)))
    assert vector.dtype == np.float32
    assert math.isclose(float(np.linalg.norm(vector)), 1.0, abs_tol=1e-5)


def test_the_second_text_of_a_pair_has_another_type() -> None:
    runner = PooledRunner(SCORES, 1, DEFAULT_OPTIONS)
    pair = text(20)
    (early,), (late,) = (read(runner, row(pair, second=second))[0] for second in (5, 15))
    assert early.shape == (1,)
    assert 0 < early[0] < 1
    assert early[0] != late[0]


def test_texts_of_similar_lengths_are_read_together() -> None:
    texts = [PooledText(length) for length in (100, 10, 95, 12, 40)]
    assert list(_batches(texts, are_filled=True)) == [[0, 2], [4], [3, 1]]
    assert list(_batches(texts, are_filled=False)) == [[0], [2], [4], [3], [1]]
    assert [len(batch) for batch in _batches([PooledText(512)] * 9, are_filled=True)] == [4, 4, 1]
    assert list(_batches([PooledText(5000)], are_filled=True)) == [[0]]


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    """The demo chat model as a reranker."""
    for name in ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "1_LogitScore", "type": "x.LogitScore"}]))
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": TRUE, "false_token_id": FALSE}))
    return tmp_path


def test_a_decoder_scores_by_the_logits_after_its_last_token(decoder: Path) -> None:
    runner = PooledRunner(decoder, 1, DEFAULT_OPTIONS)
    runner.warm_up()
    library = Driven(OgGeneratorRunner(DEMO, "cpu", 1))
    texts = [[number * 7 % 900 + 10 for number in range(length)] for length in (30, 5, 28, 100)]
    (found,) = read(runner, row(*texts))
    for number, tokens in enumerate(texts):
        library.open(number, tokens, len(tokens) + 1)
        logits = library.prefill(number, tokens)
        expected = 1 / (1 + math.exp(float(logits[FALSE] - logits[TRUE])))
        assert math.isclose(float(found[number][0]), expected, abs_tol=1e-4)


def test_configured_vector_size_is_checked_at_the_start(tmp_path: Path) -> None:
    shutil.copytree(VECTORS, tmp_path / "wrong")
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (tmp_path / "wrong" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    runner = PooledRunner(tmp_path / "wrong", 1, DEFAULT_OPTIONS)
    with pytest.raises(ModelDirectoryError, match=r"gives 128 numbers for a text, .* says 64"):
        runner.warm_up()


def test_a_graph_without_the_output_that_is_needed_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SCORES, tmp_path / "wrong")
    config = json.loads((SCORES / "config.json").read_bytes()) | {"architectures": ["BertModel"]}
    (tmp_path / "wrong" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelDirectoryError, match="no file describes the pooling of a text's vectors"):
        check_model_directory(tmp_path / "wrong")
    shutil.copytree(VECTORS / "1_Pooling", tmp_path / "wrong" / "1_Pooling")
    shutil.copy(VECTORS / "modules.json", tmp_path / "wrong")
    with pytest.raises(ModelDirectoryError, match=r"has no output token_embeddings or .*; it has logits"):
        PooledRunner(tmp_path / "wrong", 1, DEFAULT_OPTIONS)


def test_a_graph_without_logits_is_refused(tmp_path: Path, decoder: Path) -> None:
    config = json.loads((decoder / "genai_config.json").read_bytes())
    config["model"]["decoder"]["filename"] = "states.onnx"
    (decoder / "genai_config.json").write_text(json.dumps(config))
    shutil.copy(VECTORS / "model.onnx", decoder / "states.onnx")
    with pytest.raises(ModelDirectoryError, match=r"states\.onnx has no output logits; it has"):
        PooledRunner(decoder, 1, DEFAULT_OPTIONS)


def test_a_module_that_the_graph_does_not_have_is_refused(tmp_path: Path) -> None:
    shutil.copytree(VECTORS, tmp_path / "wrong")
    modules = json.loads((VECTORS / "modules.json").read_bytes())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (tmp_path / "wrong" / "modules.json").write_text(json.dumps([*modules[:2], dense]))
    with pytest.raises(ModelDirectoryError, match=r"modules\.json names a module, such as Dense, that must be part of"):
        check_model_directory(tmp_path / "wrong")


def test_a_lost_configuration_of_the_pooling_is_named(tmp_path: Path) -> None:
    shutil.copytree(VECTORS, tmp_path / "wrong")
    (tmp_path / "wrong" / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelDirectoryError, match=r": 1_Pooling/config\.json, which modules\.json names, is missing"):
        check_model_directory(tmp_path / "wrong")


def test_a_graph_may_pool_by_itself(tmp_path: Path) -> None:
    shutil.copytree(VECTORS, tmp_path / "pools")
    with edited_graph(tmp_path / "pools") as graph:
        (states,) = graph.output
        axis = onnx.helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1])
        graph.initializer.append(axis)
        inputs = [states.name, axis.name]
        graph.node.append(onnx.helper.make_node("ReduceMean", inputs, ["sentence_embedding"], keepdims=0))
        graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("sentence_embedding", 1, ["texts", 128]))
    alone = row(text(9))
    (found,) = read(PooledRunner(tmp_path / "pools", 1, DEFAULT_OPTIONS), alone)
    (expected,) = read(PooledRunner(VECTORS, 1, DEFAULT_OPTIONS), alone)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_pass_of_one_request_can_be_interrupted_and_repeated(vectors: PooledRunner) -> None:
    long = row(*[text(256)] * 30)
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.wait(0.001):
            vectors.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted):
        vectors.forward([long])
    ended.set()
    thread.join()
    vectors.cancel_interrupt()  # the last interrupt may have come after the pass
    assert len(read(vectors, long)[0]) == 30


def test_slow_fusion_is_disabled_on_cpu_unless_configured(tmp_path: Path) -> None:
    ((key, left_out),) = DISABLED_FUSIONS.items()
    chosen = DeviceOptions(entries={key: "GeluFusionL2"})
    operators = {}
    for name, options in (("default", DEFAULT_OPTIONS), ("chosen", chosen)):
        runner = PooledRunner(VECTORS, 1, options, profile_prefix=str(tmp_path / name))
        read(runner, row(text(9)))
        runner.end_session()
        (profile,) = tmp_path.glob(f"{name}*")
        operators[name] = {event.get("args", {}).get("op_name") for event in json.loads(profile.read_text())}
    fused = left_out.removesuffix("Fusion") + "alization"
    assert fused not in operators["default"]
    assert fused in operators["chosen"]


def test_pooled_runner_continues_no_prompt(vectors: PooledRunner) -> None:
    with pytest.raises(InvalidField, match="model takes texts to pool"):
        vectors.check(GenerationRequest("r", [1], 1, 2))


def test_background_pass_of_several_requests_is_interrupted(
    vectors: PooledRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [row(text(9), low_priority=True), row(text(8), low_priority=True)]
    expected = [read(vectors, each) for each in chunks]
    feed = vectors._feed

    def interrupted(*arguments: Any) -> Any:
        vectors.interrupt()
        return feed(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(vectors, "_feed", interrupted)
        with pytest.raises(Interrupted):
            vectors.forward(chunks)
        vectors.forward([chunks[0], row(text(8))])  # beside another request it cannot be interrupted
    found = vectors.forward(chunks)
    for scores, vector in zip(found, expected, strict=True):
        assert scores.vectors is not None
        assert np.allclose(scores.vectors, vector, atol=1e-5)
