"""Every file of a model directory is checked, and each fault has a remedy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.inventory import Entry, inventory
from genai_server.errors import ModelDirectoryError
from tests.running_server import DEMO, ROOT

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7037952\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def faults(directory: Path) -> dict[str, Entry]:
    return {entry.name: entry for entry in inventory(directory) if entry.fault}


def test_a_whole_directory_has_no_fault(directory: Path) -> None:
    entries = list(inventory(directory))
    assert [entry.name for entry in entries] == [
        "genai_config.json",
        "model.onnx",
        "model.onnx.data",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ]
    assert not any(entry.fault for entry in entries)


def test_all_missing_files_are_reported_at_once_with_remedies(directory: Path) -> None:
    for name in ("model.onnx.data", "tokenizer.json"):
        (directory / name).unlink()
    found = faults(directory)
    assert {name: entry.fault for name, entry in found.items()} == dict.fromkeys(found, "is missing")
    assert set(found) == {"model.onnx.data", "tokenizer.json"}
    assert found["tokenizer.json"].remedy == "copy it from the original model"
    assert "genai-server pull" in found["model.onnx.data"].remedy


def test_missing_files_for_images_are_reported(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(ROOT / "tests" / "built_models" / "qwen-3-vl-images", tmp_path / "model"))
    assert not faults(directory)
    names = {"vision.onnx", "embedding.onnx", "processor_config.json"}
    for name in names:
        (directory / name).unlink()
    assert faults(directory).keys() == names


def test_missing_files_for_speech_are_reported(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(ROOT / "tests" / "built_models" / "whisper", tmp_path / "model"))
    assert "generation_config.json" in [entry.name for entry in inventory(directory)]
    assert not faults(directory)
    names = {"encoder.onnx", "audio_processor_config.json"}
    for name in (*names, "generation_config.json"):
        (directory / name).unlink()
    assert faults(directory).keys() == names


def test_truncated_weights_are_reported_with_their_sizes(directory: Path) -> None:
    path = directory / "model.onnx.data"
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:1000])
    assert faults(directory)["model.onnx.data"].fault == f"has 1000 of {whole} bytes: it is truncated"


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_gits_pointer_in_a_files_place_is_known_as_such(directory: Path, name: str) -> None:
    (directory / name).write_bytes(POINTER)
    assert faults(directory)[name].remedy == "run git lfs pull there"
    with pytest.raises(ModelDirectoryError, match="Git's pointer to the file, not the file itself; run git lfs pull"):
        check_model_directory(directory)


@pytest.mark.parametrize("name", ["genai_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_invalid_json_is_reported(directory: Path, name: str) -> None:
    (directory / name).write_bytes(b"{")
    assert name in faults(directory)


def test_unreadable_graph_is_reported(directory: Path) -> None:
    (directory / "model.onnx").write_bytes(b"\xff" * 100)
    assert faults(directory)["model.onnx"].fault.startswith("cannot be read")


def test_fault_across_files_is_reported_for_the_directory(directory: Path) -> None:
    config = json.loads((directory / "genai_config.json").read_bytes())
    del config["model"]["vocab_size"]
    (directory / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "vocab_size" in faults(directory)["."].fault


def test_unreadable_files_are_reported(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreadable by permissions, which do not apply to root."""
    read = Path.open

    def forbidding(path: Path, *how: Any, **named: Any) -> Any:
        if path.name in ("model.onnx.data", "tokenizer.json"):
            raise PermissionError(13, "Permission denied")
        return read(path, *how, **named)

    monkeypatch.setattr(Path, "open", forbidding)
    found = faults(directory)
    assert list(found) == ["model.onnx.data", "tokenizer.json"]
    assert {entry.fault for entry in found.values()} == {"cannot be read: permission denied"}
    with pytest.raises(ModelDirectoryError, match=r"tokenizer.json cannot be read: permission denied"):
        check_model_directory(directory)
