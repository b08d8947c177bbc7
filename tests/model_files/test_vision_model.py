"""What a model directory says about images."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.vision_model import Medium, VisionModel, any_takes_media, medium_of, read_vision_model
from tests.media.images.vision_directory import IDS, make_vision_directory
from tests.running_server import DEMO

BUILT = Path(__file__).parents[1] / "built_models"


def _changed(folder: Path, **values: Any) -> Path:
    """A directory with other values in `model`; None removes one."""
    model_dir = make_vision_directory(folder / "model")
    path = model_dir / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"] = {key: value for key, value in (config["model"] | values).items() if value is not None}
    path.write_text(json.dumps(config), encoding="utf-8")
    return model_dir


def test_vision_model_has_its_familys_marker(own_folder: Path) -> None:
    marker = "<|vision_start|><|image_pad|><|vision_end|>"
    found = read_vision_model(make_vision_directory(own_folder / "model"))
    assert found == VisionModel(own_folder / "model", "qwen3_vl", marker, "<|image_pad|>", IDS["<|image_pad|>"])


@pytest.mark.parametrize("missing", ["vision", "embedding", "type"])
def test_directory_without_a_part_takes_text_only(own_folder: Path, missing: str) -> None:
    assert read_vision_model(_changed(own_folder, **{missing: None})) is None


def test_unknown_type_takes_text_only(own_folder: Path) -> None:
    assert read_vision_model(_changed(own_folder, type="videochat_flash_qwen")) is None


@pytest.mark.parametrize("path", [BUILT / "llama-3", BUILT / "qwen-3-vl", DEMO])
def test_text_model_takes_text_only(path: Path) -> None:
    assert (path / "genai_config.json").is_file()
    assert read_vision_model(path) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_configuration_that_is_no_file_is_not_read(own_folder: Path) -> None:
    assert read_vision_model(own_folder / "nowhere") is None
    os.mkfifo(own_folder / "genai_config.json")
    assert read_vision_model(own_folder) is None


def test_token_is_looked_up_if_the_config_has_none(own_folder: Path) -> None:
    for kind, token in (("gemma3", "<image_soft_token>"), ("qwen3_vl", "<|image_pad|>"), ("mistral3", "[IMG]")):
        found = read_vision_model(_changed(own_folder, image_token_id=None, type=kind))
        assert found is not None
        assert found.image_token_id == IDS[token]


def test_token_that_is_nowhere_is_an_error(own_folder: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="endoftext10"):
        read_vision_model(_changed(own_folder, image_token_id=None, type="phi4mm"))


def test_negative_token_is_an_error(own_folder: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="image_token_id: -1"):
        read_vision_model(_changed(own_folder, image_token_id=-1))


def test_config_that_is_not_json_is_an_error_or_no_model(own_folder: Path) -> None:
    (own_folder / "genai_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelDirectoryError, match="genai_config.json"):
        read_vision_model(own_folder)
    assert not any_takes_media([str(own_folder), "nowhere"])
    assert any_takes_media(["nowhere", str(make_vision_directory(own_folder / "model"))])


def test_model_of_sounds_has_a_special_token_for_them(tmp_path: Path) -> None:
    source = BUILT / "lfm2-audio"
    found = read_vision_model(source)
    assert found is not None
    assert (found.medium, found.placeholder, found.image_token_id) == (Medium.AUDIO, "<|reserved_audio|>", 3)
    directory = shutil.copytree(source, tmp_path / "model")
    config = json.loads((directory / "genai_config.json").read_text())
    for token in (299, None, "3"):
        config["model"]["audio_token_id"] = token
        (directory / "genai_config.json").write_text(json.dumps(config))
        with pytest.raises(ModelDirectoryError, match=f"no special token with model.audio_token_id .*: {token}"):
            read_vision_model(directory)
        assert medium_of(directory) is None
