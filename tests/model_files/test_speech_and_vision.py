"""What is read of the files of models for speech."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.model_files.speech_and_vision import (
    Medium,
    SpeechModel,
    VisionModel,
    any_takes_media,
    medium_of,
    read_speech_model,
    read_vision_model,
    transcribes,
)
from tests.media.images.vision_directory import IDS, make_vision_directory
from tests.running_server import DEMO

_NAMES = [
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>", "<|0.00|>", "<|0.02|>"),
]
_VOCABULARY = {"a": 0, "Ġ": 1, "-": 2, "Ġ-": 3, "[": 4, "Ġ[": 5, "âĻ": 6, "âĻª": 7}
_FIRST = len(_VOCABULARY)


def _directory(folder: Path, **files: Any) -> Path:
    written: dict[str, Any] = {
        "genai_config": {"model": {"type": "whisper", "context_length": 448}},
        "tokenizer": {
            "added_tokens": [{"id": _FIRST + place, "content": name} for place, name in enumerate(_NAMES)],
            "model": {"vocab": _VOCABULARY},
        },
        **files,
    }
    for name, value in written.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def _speech(directory: Path) -> SpeechModel:
    model = read_speech_model(directory)
    assert model is not None
    return model


def test_tokens_come_from_the_tokenizer_and_the_task_is_to_transcribe(tmp_path: Path) -> None:
    model = _speech(_directory(tmp_path))
    assert model.languages == {"en": _FIRST + 2, "de": _FIRST + 3}
    assert (model.end_of_text, model.start_of_transcript) == (_FIRST, _FIRST + 1)
    assert (model.translate, model.transcribe, model.first_timestamp) == (_FIRST + 4, _FIRST + 5, _FIRST + 10)
    assert model.window_seconds == 30.0
    # Annotations and marks are suppressed. A hyphen may stand within words. A note of several tokens is left out by its
    # first one.
    assert model.suppressed == [3, 4, 5, 6, 7, *range(_FIRST + 1, _FIRST + 10)]
    assert task_of(tmp_path) is Task.TRANSCRIBE
    assert transcribes(tmp_path)


def test_other_files_say_what_is_suppressed_which_languages_there_are_and_how_long_windows_are(tmp_path: Path) -> None:
    suppressing = _speech(_directory(tmp_path, generation_config={"suppress_tokens": [0, 2]}))
    assert suppressing.suppressed == [0, 2, *range(_FIRST + 1, _FIRST + 10)]
    assert _speech(_directory(tmp_path, generation_config={"is_multilingual": False})).languages == {}
    steps = [{"operation": {"attrs": {"n_fft": 400}}}, {"operation": {"attrs": {"chunk_size": 10}}}]
    processor = {"feature_extraction": {"sequence": steps}}
    assert _speech(_directory(tmp_path, audio_processor_config=processor)).window_seconds == 10.0


@pytest.mark.parametrize("id", [-1, 20])
def test_a_suppressed_token_must_exist(tmp_path: Path, id: int) -> None:
    config = {"model": {"type": "whisper", "context_length": 448, "vocab_size": 20}}
    directory = _directory(tmp_path, genai_config=config, generation_config={"suppress_tokens": [19, id]})
    with pytest.raises(ModelDirectoryError, match=rf"suppresses the token {id}, which is not among the model's 20"):
        read_speech_model(directory)


def test_other_models_do_not_transcribe(tmp_path: Path) -> None:
    directory = _directory(tmp_path, genai_config={"model": {"type": "qwen3"}})
    assert read_speech_model(directory) is None
    assert task_of(directory) is Task.GENERATE


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    tokenizer = {"added_tokens": [{"id": 9, "content": "<|endoftext|>"}], "model": {"vocab": _VOCABULARY}}
    with pytest.raises(ModelDirectoryError, match=r"tokenizer.json has no token <\|transcribe\|>"):
        read_speech_model(_directory(tmp_path, tokenizer=tokenizer))


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


@pytest.mark.parametrize(
    "values", [{"vision": None}, {"embedding": None}, {"type": None}, {"type": "videochat_flash_qwen"}]
)
def test_directory_without_a_part_or_of_another_type_takes_text_only(own_folder: Path, values: dict[str, Any]) -> None:
    assert read_vision_model(_changed(own_folder, **values)) is None


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


@pytest.mark.parametrize(
    ("values", "words"),
    [({"image_token_id": None, "type": "phi4mm"}, "endoftext10"), ({"image_token_id": -1}, "image_token_id: -1")],
)
def test_token_that_is_nowhere_or_negative_is_an_error(own_folder: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelDirectoryError, match=words):
        read_vision_model(_changed(own_folder, **values))


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
