"""Vectors and scores of complete texts, on the demo models."""

import json
import math
import shutil
from collections import abc
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
from tests.model_edits import edited_config, edited_graph
from tests.running_server import DEMO, ROOT

VECTORS, SCORES = ROOT / "models" / "demo-embeddings", ROOT / "models" / "demo-reranker"
TRUE, FALSE = 300, 400


@pytest.fixture(scope="module")
def vectors() -> PooledRunner:
    return PooledRunner(VECTORS, 1, DEFAULT_OPTIONS)


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


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    """The demo chat model as a reranker."""
    for name in ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, tmp_path)
    write_json(tmp_path / "modules.json", [{"path": "1_LogitScore", "type": "x.LogitScore"}])
    write_json(tmp_path / "1_LogitScore" / "config.json", {"true_token_id": TRUE, "false_token_id": FALSE})
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


POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
OTHER_SIZE = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("1_Pooling/config.json", OTHER_SIZE, r"gives 128 numbers for a text, .* says 64"),
        ("1_Pooling/config.json", None, r": 1_Pooling/config\.json, which modules\.json names, is missing"),
        ("modules.json", [POOLING, DENSE], r"modules\.json names a module, such as Dense, that must be part of"),
    ],
    ids=["another vector size", "a lost configuration", "a module that the graph does not have"],
)
def test_a_configuration_of_the_pooling_that_is_wrong_is_named(
    tmp_path: Path, name: str, content: object, message: str
) -> None:
    model_dir = Path(shutil.copytree(VECTORS, tmp_path / "wrong"))
    (model_dir / name).unlink()
    if content is not None:
        write_json(model_dir / name, content)
    with pytest.raises(ModelDirectoryError, match=message):
        check_model_directory(model_dir)
        PooledRunner(model_dir, 1, DEFAULT_OPTIONS).warm_up()


def test_a_graph_without_the_output_that_is_needed_is_refused(tmp_path: Path, decoder: Path) -> None:
    wrong = Path(shutil.copytree(SCORES, tmp_path / "wrong"))
    write_json(wrong / "config.json", json.loads((SCORES / "config.json").read_bytes()) | {"architectures": ["Bert"]})
    with pytest.raises(ModelDirectoryError, match="no file describes the pooling of a text's vectors"):
        check_model_directory(wrong)
    shutil.copytree(VECTORS / "1_Pooling", wrong / "1_Pooling")
    shutil.copy(VECTORS / "modules.json", wrong)
    with pytest.raises(ModelDirectoryError, match=r"has no output token_embeddings or .*; it has logits"):
        PooledRunner(wrong, 1, DEFAULT_OPTIONS)
    with edited_config(decoder) as config:
        config["model"]["decoder"]["filename"] = "states.onnx"
    shutil.copy(VECTORS / "model.onnx", decoder / "states.onnx")
    with pytest.raises(ModelDirectoryError, match=r"states\.onnx has no output logits; it has"):
        PooledRunner(decoder, 1, DEFAULT_OPTIONS)


def test_a_graph_may_pool_by_itself(tmp_path: Path, vectors: PooledRunner) -> None:
    model_dir = Path(shutil.copytree(VECTORS, tmp_path / "pools"))
    with edited_graph(model_dir) as graph:
        (states,) = graph.output
        graph.initializer.append(onnx.helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1]))
        inputs = [states.name, "axis"]
        graph.node.append(onnx.helper.make_node("ReduceMean", inputs, ["sentence_embedding"], keepdims=0))
        graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("sentence_embedding", 1, ["texts", 128]))
    (found,), (expected,) = (
        read(each, row(text(9))) for each in (PooledRunner(model_dir, 1, DEFAULT_OPTIONS), vectors)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_pass_of_one_request_or_of_the_background_can_be_interrupted_and_repeated(
    vectors: PooledRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = [row(text(9), low_priority=True), row(text(8), low_priority=True)]
    feed = vectors._feed

    def interrupted(*arguments: Any) -> Any:
        vectors.interrupt()
        return feed(*arguments)

    for chunks in ([row(*[text(256)] * 3)], background):
        expected = [read(vectors, each)[0] for each in chunks]
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(vectors, "_feed", interrupted)
            vectors.forward(chunks)
        for found, alone in zip(read(vectors, *chunks), expected, strict=True):
            assert np.allclose(found, alone, atol=1e-5)
    monkeypatch.setattr(vectors, "_feed", interrupted)
    vectors.forward([background[0], row(text(8))])  # beside another request it cannot be interrupted


def test_slow_fusion_is_disabled_on_cpu_unless_configured(tmp_path: Path) -> None:
    ((key, left_out),) = DISABLED_FUSIONS.items()
    chosen = DeviceOptions(entries={key: "GeluFusionL2"})
    fused = left_out.removesuffix("Fusion") + "alization"
    for name, options in (("default", DEFAULT_OPTIONS), ("chosen", chosen)):
        runner = PooledRunner(VECTORS, 1, options, profile_prefix=str(tmp_path / name))
        read(runner, row(text(9)))
        runner.end_session()
        (profile,) = tmp_path.glob(f"{name}*")
        operators = {event.get("args", {}).get("op_name") for event in json.loads(profile.read_text())}
        assert (fused in operators) == (name == "chosen")


def test_pooled_runner_continues_no_prompt(vectors: PooledRunner) -> None:
    with pytest.raises(InvalidField, match="model takes texts to pool"):
        vectors.check(GenerationRequest("r", [1], 1, 2))
