"""What model directories contain about models for embeddings and reranking."""

import json
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.pooling_model import PoolingModel, Task, is_decoder, read_pooling_model, task_of
from tests.running_server import DEMO, ROOT

BERT = {"architectures": ["BertModel"], "vocab_size": 100, "hidden_size": 8, "max_position_embeddings": 64}
CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
WIDTH = {"word_embedding_dimension": 8}
MEAN = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
ENCODER = {"config.json": BERT, "modules.json": [TRANSFORMER, POOLING], "1_Pooling/config.json": MEAN}


def written(folder: Path, files: dict[str, Any], *, graph: str = "model.onnx") -> Path:
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    (folder / graph).parent.mkdir(exist_ok=True)
    (folder / graph).touch()
    return folder


def pooling_model(folder: Path) -> PoolingModel:
    found = read_pooling_model(folder)
    assert found is not None
    return found


def encoder(folder: Path, **files: Any) -> PoolingModel:
    """An encoder with mean pooling, and these files instead of its own."""
    own = {name.replace("__", "/"): value for name, value in files.items()}
    return pooling_model(written(folder, ENCODER | own))


def test_missing_directories_and_those_of_onnxruntime_genai_alone_generate_text(tmp_path: Path) -> None:
    assert task_of(DEMO) is Task.GENERATE
    assert read_pooling_model(DEMO) is None
    assert task_of(tmp_path / "none") is Task.GENERATE
    written(tmp_path, {"config.json": BERT | {"architectures": ["Qwen3ForCausalLM"]}})
    assert task_of(tmp_path) is Task.GENERATE


def test_the_demo_models_say_what_they_are() -> None:
    vectors = pooling_model(ROOT / "models" / "demo-embeddings")
    assert (vectors.task, vectors.modes, vectors.normalizes) == (Task.EMBED, ("mean",), True)
    assert (vectors.dimensions, vectors.max_tokens, vectors.lengths()) == (128, 256, "32, 64, 128")
    scores = pooling_model(ROOT / "models" / "demo-reranker")
    assert (scores.task, scores.true_token, scores.has_sigmoid) == (Task.RERANK, None, True)


def test_modules_say_how_vectors_become_one(tmp_path: Path) -> None:
    model = encoder(tmp_path)
    assert (model.task, model.modes, model.normalizes, model.dimensions) == (Task.EMBED, ("mean",), False, 8)
    assert encoder(tmp_path, **{"modules.json": [TRANSFORMER, POOLING, NORMALIZE]}).normalizes


@pytest.mark.parametrize(
    ("pooling", "modes", "dimensions"),
    [
        ({"pooling_mode": "lasttoken", "embedding_dimension": 8}, ("lasttoken",), 8),
        ({"pooling_mode": ["cls", "mean"], "embedding_dimension": 8}, ("cls", "mean"), 16),
        ({**WIDTH, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, ("lasttoken",), 8),
        ({**WIDTH, "pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, ("cls", "max"), 16),
        (WIDTH, ("mean",), 8),
    ],
)
def test_both_forms_of_pooling_are_read(
    tmp_path: Path, pooling: dict[str, Any], modes: tuple[str, ...], dimensions: int
) -> None:
    model = encoder(tmp_path, **{"1_Pooling__config.json": pooling})
    assert (model.modes, model.dimensions) == (modes, dimensions)


def test_an_unknown_pooling_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match='pooling_mode "median": it must be one of cls, max, mean'):
        encoder(tmp_path, **{"1_Pooling__config.json": {"pooling_mode": "median", "embedding_dimension": 8}})


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, 64),
        ({"sentence_bert_config.json": {"max_seq_length": 40}}, 40),
        ({"sentence_bert_config.json": {"max_seq_length": 400}}, 64),
        ({"tokenizer_config.json": {"model_max_length": 50}}, 50),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 64),
        ({"config.json": BERT | {"model_type": "xlm-roberta", "pad_token_id": 1, "max_position_embeddings": 514}}, 512),
    ],
)
def test_token_limit_is_the_smallest_in_the_files(tmp_path: Path, files: dict[str, Any], most: int) -> None:
    assert encoder(tmp_path, **files).max_tokens == most


def test_prompts_are_read_with_the_default_one(tmp_path: Path) -> None:
    own = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}
    model = encoder(tmp_path, **{"config_sentence_transformers.json": own})
    assert (model.prompts, model.default_prompt) == ({"query": "query: ", "document": ""}, "query")
    with pytest.raises(ModelDirectoryError, match='default_prompt_name "other"'):
        encoder(tmp_path, **{"config_sentence_transformers.json": own | {"default_prompt_name": "other"}})


def test_shorter_vectors_are_those_that_the_configuration_names(tmp_path: Path) -> None:
    model = encoder(tmp_path, **{"config.json": BERT | {"matryoshka_dimensions": [8, 4, 2]}})
    assert [length for length in range(1, 10) if model.takes_length(length)] == [2, 4, 8]
    model = encoder(tmp_path, **{"config.json": BERT | {"is_matryoshka": True}})
    assert [length for length in range(1, 10) if model.takes_length(length)] == list(range(1, 9))
    assert not encoder(tmp_path, **{"config.json": BERT}).takes_length(4)


@pytest.mark.parametrize(
    ("more", "has_sigmoid"),
    [
        ({}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
    ],
)
def test_classifier_with_one_label_reranks(tmp_path: Path, more: dict[str, Any], has_sigmoid: bool) -> None:
    model = pooling_model(written(tmp_path, {"config.json": CLASSIFIER | more}))
    assert (model.task, model.has_sigmoid) == (Task.RERANK, has_sigmoid)


def test_a_classifier_with_more_labels_is_refused(tmp_path: Path) -> None:
    labels = CLASSIFIER | {"id2label": {"0": "no", "1": "yes"}}
    with pytest.raises(ModelDirectoryError, match="a classifier with 2 labels: a reranker has one"):
        read_pooling_model(written(tmp_path, {"config.json": labels}))


def test_a_decoder_reranks_by_the_tokens_of_its_module(tmp_path: Path) -> None:
    files = {
        "config.json": BERT | {"architectures": ["Qwen3ForCausalLM"]},
        "genai_config.json": {"model": {"decoder": {"filename": "model.onnx"}}},
        "modules.json": [TRANSFORMER, {"path": "1_LogitScore", "type": "x.LogitScore"}],
        "1_LogitScore/config.json": {"true_token_id": 7, "false_token_id": 3},
    }
    model = pooling_model(written(tmp_path, files))
    assert (model.task, model.true_token, model.false_token) == (Task.RERANK, 7, 3)
    assert is_decoder(tmp_path)
    written(tmp_path, {"1_LogitScore/config.json": {"true_token_id": 7, "false_token_id": 10**6}})
    with pytest.raises(ModelDirectoryError, match="false_token_id 1000000: the vocabulary has"):
        read_pooling_model(tmp_path)


def test_only_graph_of_a_repository_is_found_anywhere(tmp_path: Path) -> None:
    model = pooling_model(written(tmp_path, ENCODER, graph="onnx/model_quantized.onnx"))
    assert model.graph == "onnx/model_quantized.onnx"
    (tmp_path / "onnx" / "model_fp16.onnx").touch()
    with pytest.raises(ModelDirectoryError, match=r"several graphs and no model.onnx: onnx/model_fp16.onnx, "):
        read_pooling_model(tmp_path)


def test_a_module_outside_the_directory_is_refused(tmp_path: Path) -> None:
    modules = [TRANSFORMER, POOLING | {"path": "../1_Pooling"}]
    with pytest.raises(ModelDirectoryError, match="names a folder outside the model directory"):
        encoder(tmp_path, **{"modules.json": modules})


@pytest.mark.parametrize("text", ["[", "{}", "[1]"])
def test_invalid_list_of_modules_is_refused(tmp_path: Path, text: str) -> None:
    written(tmp_path, {"config.json": BERT})
    (tmp_path / "modules.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelDirectoryError, match=r"modules\.json cannot be read"):
        read_pooling_model(tmp_path)
