"""Every file of a model directory is checked, and each fault has a remedy."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.inventory import Entry, inventory
from genai_server.errors import ModelDirectoryError
from tests.engine.hybrids import BUILT
from tests.model_edits import edited_config
from tests.running_server import DEMO

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
    names = {"model.onnx.data", "tokenizer.json"}
    for name in names:
        (directory / name).unlink()
    found = faults(directory)
    assert {name: entry.fault for name, entry in found.items()} == dict.fromkeys(names, "is missing")
    assert found["tokenizer.json"].remedy == "copy it from the original model"
    assert "genai-server pull" in found["model.onnx.data"].remedy


@pytest.mark.parametrize(
    ("name", "needed", "optional"),
    [
        ("qwen-3-vl-images", {"vision.onnx", "embedding.onnx", "processor_config.json"}, set()),
        ("whisper", {"encoder.onnx", "audio_processor_config.json"}, {"generation_config.json"}),
    ],
)
def test_missing_files_for_images_and_speech_are_reported(
    tmp_path: Path, name: str, needed: set[str], optional: set[str]
) -> None:
    directory = Path(shutil.copytree(BUILT / name, tmp_path / "model"))
    assert optional <= {entry.name for entry in inventory(directory)}
    assert not faults(directory)
    for file in needed | optional:
        (directory / file).unlink()
    assert faults(directory).keys() == needed


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


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("genai_config.json", b"{", "cannot be read"),
        ("tokenizer.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("model.onnx", b"\xff" * 100, "cannot be read"),
    ],
)
def test_invalid_file_is_reported(directory: Path, name: str, content: bytes, fault: str) -> None:
    (directory / name).write_bytes(content)
    assert fault in faults(directory)[name].fault


def test_fault_across_files_is_reported_for_the_directory(directory: Path) -> None:
    with edited_config(directory) as config:
        del config["model"]["vocab_size"]
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
