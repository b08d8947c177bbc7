"""The memory of models, estimated from the files of their directories."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.model_files.model_memory import LOADED, ModelMemory, advice_for_context, read_model_memory
from tests.running_server import DEMO, ROOT

SIZE = sum(path.stat().st_size for path in DEMO.glob("model.onnx*"))


def test_a_models_weights_and_keys_are_estimated_without_other_files(tmp_path: Path) -> None:
    graph = read_decoder_graph(DEMO)
    narrow = replace(graph, cache_type=np.int8).bytes_per_token
    assert read_model_memory(DEMO) == ModelMemory(int(LOADED * SIZE), graph.bytes_per_token, 2048, narrow)
    shutil.copytree(DEMO, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.onnx_adapter").write_bytes(bytes(1000))
    (tmp_path / "other.onnx").write_bytes(bytes(1000))
    assert read_model_memory(tmp_path) == read_model_memory(DEMO)


def test_a_model_for_embeddings_has_no_keys_and_values() -> None:
    found = read_model_memory(ROOT / "models" / "demo-embeddings")
    assert found.weights > 1_000_000
    assert (found.per_token, found.kv_cache_size(100)) == (0, 0)


def test_all_graphs_of_a_model_and_output_matrix_of_a_head_count() -> None:
    speech = ROOT / "models" / "demo-speech"
    size = sum(path.stat().st_size for path in speech.glob("*coder.onnx*"))
    assert read_model_memory(speech).weights == int(LOADED * size)
    qwen = ROOT / "tests" / "built_models" / "qwen-3.5"
    size = sum(path.stat().st_size for path in qwen.glob("*.onnx*"))
    assert read_model_memory(qwen).weights == int(LOADED * (size + 4 * 300 * 32))


def test_sequences_are_no_longer_than_the_context() -> None:
    model = ModelMemory(per_token=10, context_length=100, per_token_in_8_bits=3)
    assert [model.kv_cache_size(5, kind) for kind in ("auto", "fp32", "fp16", "int8")] == [50, 50, 25, 15]
    assert [model.kv_cache_size(tokens) for tokens in (50, 100, 1000)] == [500, 1000, 1000]


@pytest.mark.parametrize(
    "config", ["", "[]", "{}", '{"model": 1}', json.dumps({"model": {"decoder": {"filename": "none.onnx"}}})]
)
def test_unreadable_directories_need_nothing(tmp_path: Path, config: str) -> None:
    assert read_model_memory(tmp_path / "none") == ModelMemory()
    (tmp_path / "genai_config.json").write_text(config, encoding="utf-8")
    assert read_model_memory(tmp_path) == ModelMemory()


def test_agents_are_mentioned_only_where_the_model_has_more() -> None:
    assert advice_for_context(20_000, 131_072)
    assert advice_for_context(4096, 8192)
    assert not advice_for_context(8192, 8192)
    assert not advice_for_context(40_000, 131_072)


def test_nothing_outside_of_the_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "model.onnx").write_bytes(bytes(1000))
    for name in ("../model.onnx", str(tmp_path / "model.onnx")):
        config = {"model": {"decoder": {"filename": name}}}
        (tmp_path / "inside" / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
        assert read_model_memory(tmp_path / "inside").weights == 0
