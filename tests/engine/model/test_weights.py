"""Packed weights: written once, reused while complete, and optional."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from genai_server.engine.model import weights
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.model.weights import native_model, packed_encoder, prepacked_model
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions, ProviderOptions
from tests.engine.hybrids import BUILT
from tests.engine.model_runners import batched_runner, greedy_logits
from tests.model_edits import edited_config, edited_graph, model_in_folders
from tests.running_server import DEMO
from tests.tokens import text


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepacked_model(DEMO, tmp_path_factory.mktemp("cache"))


def copy_of(packed: Path, cache: Path) -> Path:
    """A copy of the cache, to be damaged."""
    shutil.copytree(packed.parent, cache, dirs_exist_ok=True)
    return cache / packed.name


def written(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def logits(model_dir: Path) -> Any:
    prompt = [token % 290 for token in text(40)]
    return greedy_logits(batched_runner(model_dir, num_slots=2, max_length=64), prompt, 1)


def test_packed_model_is_complete_and_gives_the_same_logits(packed: Path) -> None:
    assert packed != DEMO
    assert check_model_directory(packed) == check_model_directory(DEMO)
    given, own = (greedy_logits(OgGeneratorRunner(path, "cpu", threads=1), text(40), 1) for path in (packed, DEMO))
    assert np.array_equal(given, own)


def test_packed_model_is_written_once(packed: Path) -> None:
    before = written(packed)
    assert prepacked_model(DEMO, packed.parent) == packed
    assert written(packed) == before


def test_other_session_options_have_a_folder_of_their_own(packed: Path, tmp_path: Path) -> None:
    other = prepacked_model(DEMO, tmp_path, DeviceOptions({"graph_optimization_level": "basic"}))
    assert other.name != packed.name


def test_adapters_next_to_the_model_do_not_affect_its_packing(adapted: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(adapted, model_dir)
    packed = prepacked_model(model_dir, tmp_path / "cache")
    assert packed != model_dir
    assert not list(packed.glob("*.onnx_adapter"))
    before = written(packed)
    shutil.copy(model_dir / "lively.onnx_adapter", model_dir / "more.onnx_adapter")
    assert prepacked_model(model_dir, tmp_path / "cache") == packed
    assert written(packed) == before


def test_head_for_multi_token_prediction_is_not_copied(tmp_path: Path) -> None:
    model_dir = BUILT / "qwen-3.5"
    packed = prepacked_model(model_dir, tmp_path)
    assert packed != model_dir
    assert check_model_directory(packed) == check_model_directory(model_dir)
    assert not list(packed.glob("mtp*"))
    assert read_decoder_graph(packed).hidden_output


@pytest.mark.parametrize("name", ["/etc/vision.onnx", "../vision.onnx", "none/vision.onnx"])
def test_files_outside_of_the_model_directory_are_not_packed(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").write_text("", encoding="utf-8")
    model_dir = Path(shutil.copytree(DEMO, tmp_path / "model"))
    with edited_config(model_dir) as config:
        config["model"]["vision"] = {"filename": name}
    prepacked_model(model_dir, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("**/other"))


def test_model_with_graphs_in_folders_is_packed_completely(tmp_path: Path) -> None:
    model_dir = model_in_folders(tmp_path / "model")
    packed = prepacked_model(model_dir, tmp_path / "cache")
    assert packed != model_dir
    assert check_model_directory(packed) == check_model_directory(model_dir)
    before = (packed / "decoder" / "model.onnx").stat().st_mtime_ns
    assert prepacked_model(model_dir, tmp_path / "cache") == packed
    assert (packed / "decoder" / "model.onnx").stat().st_mtime_ns == before
    (packed / "decoder" / "model.onnx").write_bytes(b"")
    assert prepacked_model(model_dir, tmp_path / "cache") == packed
    assert (packed / "decoder" / "model.onnx").stat().st_size


def test_options_of_threads_and_memory_share_the_folder(packed: Path) -> None:
    options = DeviceOptions({"intra_op_num_threads": "1"}, {"session.intra_op.allow_spinning": "0"})
    assert prepacked_model(DEMO, packed.parent, options) == packed


@pytest.mark.parametrize(
    "options", [DeviceOptions(custom_op_libraries=["ops.so"]), DeviceOptions(providers=[ProviderOptions("openvino")])]
)
def test_model_with_foreign_operators_is_not_packed(options: DeviceOptions, tmp_path: Path) -> None:
    assert prepacked_model(DEMO, tmp_path, options) == DEMO


@pytest.mark.parametrize("damage", ["shorter", "lost", "no manifest"])
def test_incomplete_packed_model_is_rewritten(packed: Path, tmp_path: Path, damage: str) -> None:
    copy = copy_of(packed, tmp_path)
    if damage == "shorter":
        with (copy / "model.onnx.data").open("r+b") as file:
            file.truncate(1000)
    else:
        (copy / ("tokenizer.json" if damage == "lost" else "manifest.json")).unlink()
    assert prepacked_model(DEMO, tmp_path) == copy
    assert sorted(written(copy)) == sorted(written(packed))
    assert (copy / "model.onnx.data").stat().st_size == (packed / "model.onnx.data").stat().st_size


def test_model_is_used_directly_without_a_cache() -> None:
    assert prepacked_model(DEMO, None) == DEMO


def test_model_is_used_directly_if_the_cache_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert prepacked_model(DEMO, tmp_path / "file" / "cache") == DEMO


def test_model_is_used_directly_if_onnx_runtime_cannot_pack_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise Fail("Failed to write external initializers to file")

    monkeypatch.setattr(onnxruntime, "InferenceSession", full)
    assert prepacked_model(DEMO, tmp_path) == DEMO
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_leftovers_of_a_killed_process_are_removed(packed: Path, tmp_path: Path) -> None:
    left = tmp_path / f".making-{packed.name}-x7"
    left.mkdir()
    (left / "model.onnx.data").write_bytes(b"half")
    others = tmp_path / ".making-other-0123456789abcdef-x7"
    others.mkdir()
    prepacked_model(DEMO, tmp_path)
    assert (left.exists(), others.exists()) == (False, True)


@pytest.mark.parametrize("name", ["demo", "lfm2"])
def test_packed_products_give_the_same_bits_from_a_folder_and_from_memory(tmp_path: Path, name: str) -> None:
    model_dir = DEMO if name == "demo" else BUILT / name
    packed = native_model(model_dir, tmp_path)
    assert packed != model_dir
    assert check_model_directory(packed) == check_model_directory(model_dir)
    assert read_decoder_graph(packed).has_packed_products_only
    assert np.array_equal(logits(packed), logits(model_dir))
    before = written(packed)
    assert native_model(model_dir, tmp_path) == packed
    assert written(packed) == before


def test_model_with_other_products_is_used_directly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model_dir = Path(shutil.copytree(DEMO, tmp_path / "model"))
    with edited_graph(model_dir) as graph:
        product = next(node for node in graph.node if node.op_type == "MatMulNBits")
        product.attribute.append(helper.make_attribute("weight_prepacked", 1))
    assert native_model(model_dir, tmp_path / "cache") == model_dir
    assert "ONNX Runtime's operators multiply with the weights of" in caplog.text
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_packed_model_is_made_of_linked_files(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    """Caches of model hubs consist of links."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in DEMO.iterdir():
        link(Path(shutil.copy(file, tmp_path)), linked / file.name)
    found, plain = (native_model(folder, tmp_path / "cache") for folder in (linked, DEMO))
    assert linked != found != plain != DEMO
    assert (found / "model.onnx.data").read_bytes() == (plain / "model.onnx.data").read_bytes()


def test_packed_encoder_is_written_once_and_alone(tmp_path: Path) -> None:
    found = packed_encoder(BUILT / "whisper", tmp_path, DEFAULT_OPTIONS, "encoder")
    assert found is not None
    assert sorted(written(found.parent)) == ["encoder.onnx", "encoder.onnx.data", "manifest.json"]
    before = written(found.parent)
    assert packed_encoder(BUILT / "whisper", tmp_path, DEFAULT_OPTIONS, "encoder") == found
    assert written(found.parent) == before
    decoder = native_model(BUILT / "whisper", tmp_path)
    assert decoder != found.parent


def test_encoder_that_cannot_be_stored_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(weights, "write_packed_model", full)
    assert packed_encoder(BUILT / "whisper", tmp_path, DEFAULT_OPTIONS, "encoder") is None
    assert "packed weights are not kept" in caplog.text
    assert "No space left on device" in caplog.text
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
