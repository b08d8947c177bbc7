"""Packed weights: written once, reused while complete, and optional."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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


def check_written_once(pack: Callable[[], Path], folder: Path | None = None) -> Path:
    """Check that packing again finds what is there; returns it. Its files are in this folder, or in what is found."""
    found = pack()
    before = written(folder or found)
    assert pack() == found
    assert written(folder or found) == before
    return found


def check_complete(packed: Path, model_dir: Path) -> None:
    assert packed != model_dir
    assert check_model_directory(packed) == check_model_directory(model_dir)


def logits(model_dir: Path) -> Any:
    prompt = [token % 290 for token in text(40)]
    return greedy_logits(batched_runner(model_dir, num_slots=2, max_length=64), prompt, 1)


def test_packed_model_is_complete_written_once_and_gives_the_same_logits(packed: Path) -> None:
    check_complete(packed, DEMO)
    assert check_written_once(lambda: prepacked_model(DEMO, packed.parent)) == packed
    given, own = (greedy_logits(OgGeneratorRunner(path, "cpu", threads=1), text(40), 1) for path in (packed, DEMO))
    assert np.array_equal(given, own)


def test_only_options_that_change_the_graph_have_a_folder_of_their_own(packed: Path, tmp_path: Path) -> None:
    other = prepacked_model(DEMO, tmp_path, DeviceOptions({"graph_optimization_level": "basic"}))
    assert other.name != packed.name
    options = DeviceOptions({"intra_op_num_threads": "1"}, {"session.intra_op.allow_spinning": "0"})
    assert prepacked_model(DEMO, packed.parent, options) == packed


def test_adapters_next_to_the_model_do_not_affect_its_packing(adapted: Path, tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(adapted, tmp_path / "model"))
    packed = prepacked_model(model_dir, tmp_path / "cache")
    assert packed != model_dir
    assert not list(packed.glob("*.onnx_adapter"))
    before = written(packed)
    shutil.copy(model_dir / "lively.onnx_adapter", model_dir / "more.onnx_adapter")
    assert prepacked_model(model_dir, tmp_path / "cache") == packed
    assert written(packed) == before


def test_head_for_multi_token_prediction_is_not_copied(tmp_path: Path) -> None:
    packed = prepacked_model(BUILT / "qwen-3.5", tmp_path)
    check_complete(packed, BUILT / "qwen-3.5")
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
    check_complete(packed, model_dir)
    check_written_once(lambda: prepacked_model(model_dir, tmp_path / "cache"), packed / "decoder")
    (packed / "decoder" / "model.onnx").write_bytes(b"")
    assert prepacked_model(model_dir, tmp_path / "cache") == packed
    assert (packed / "decoder" / "model.onnx").stat().st_size


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


def test_model_is_used_directly_without_a_cache_that_can_be_written(tmp_path: Path) -> None:
    assert prepacked_model(DEMO, None) == DEMO
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert prepacked_model(DEMO, tmp_path / "file" / "cache") == DEMO


def test_model_is_used_directly_if_onnx_runtime_cannot_pack_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", Mock(side_effect=Fail("Failed to write external initializers to file"))
    )
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


@pytest.mark.parametrize("model_dir", [DEMO, BUILT / "lfm2"], ids=lambda path: path.name)
def test_packed_products_give_the_same_bits_from_a_folder_and_from_memory(tmp_path: Path, model_dir: Path) -> None:
    packed = check_written_once(lambda: native_model(model_dir, tmp_path))
    check_complete(packed, model_dir)
    assert read_decoder_graph(packed).has_packed_products_only
    assert np.array_equal(logits(packed), logits(model_dir))


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
    def pack() -> Path:
        found = packed_encoder(BUILT / "whisper", tmp_path, DEFAULT_OPTIONS, "encoder")
        assert found is not None
        return found

    folder = check_written_once(pack, pack().parent).parent
    assert sorted(written(folder)) == ["encoder.onnx", "encoder.onnx.data", "manifest.json"]
    assert native_model(BUILT / "whisper", tmp_path) != folder


def test_encoder_that_cannot_be_stored_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        weights, "write_packed_model", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    )
    assert packed_encoder(BUILT / "whisper", tmp_path, DEFAULT_OPTIONS, "encoder") is None
    assert "packed weights are not kept" in caplog.text
    assert "No space left on device" in caplog.text
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
