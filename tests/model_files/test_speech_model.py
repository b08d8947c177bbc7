"""What is read of the files of models for speech."""

import json
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.model_files.speech_model import read_speech_model, transcribes

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


def test_ids_come_from_the_tokenizer(tmp_path: Path) -> None:
    model = read_speech_model(_directory(tmp_path))
    assert model is not None
    assert model.languages == {"en": _FIRST + 2, "de": _FIRST + 3}
    assert (model.end_of_text, model.start_of_transcript) == (_FIRST, _FIRST + 1)
    assert (model.translate, model.transcribe, model.first_timestamp) == (_FIRST + 4, _FIRST + 5, _FIRST + 10)
    assert model.window_seconds == 30.0


def test_annotations_and_marks_are_no_transcript(tmp_path: Path) -> None:
    model = read_speech_model(_directory(tmp_path))
    assert model is not None
    # A hyphen may stand within words. A note of several tokens is left out by its first one.
    assert model.suppressed == [3, 4, 5, 6, 7, *range(_FIRST + 1, _FIRST + 10)]


def test_the_original_says_what_is_suppressed(tmp_path: Path) -> None:
    generation = {"suppress_tokens": [0, 2]}
    model = read_speech_model(_directory(tmp_path, generation_config=generation))
    assert model is not None
    assert model.suppressed == [0, 2, *range(_FIRST + 1, _FIRST + 10)]


@pytest.mark.parametrize("id", [-1, 20])
def test_a_suppressed_token_must_exist(tmp_path: Path, id: int) -> None:
    config = {"model": {"type": "whisper", "context_length": 448, "vocab_size": 20}}
    directory = _directory(tmp_path, genai_config=config, generation_config={"suppress_tokens": [19, id]})
    with pytest.raises(ModelDirectoryError, match=rf"suppresses the token {id}, which is not among the model's 20"):
        read_speech_model(directory)


def test_an_english_model_has_no_languages(tmp_path: Path) -> None:
    model = read_speech_model(_directory(tmp_path, generation_config={"is_multilingual": False}))
    assert model is not None
    assert model.languages == {}


def test_the_processor_says_how_long_windows_are(tmp_path: Path) -> None:
    steps = [{"operation": {"attrs": {"n_fft": 400}}}, {"operation": {"attrs": {"chunk_size": 10}}}]
    processor = {"feature_extraction": {"sequence": steps}}
    model = read_speech_model(_directory(tmp_path, audio_processor_config=processor))
    assert model is not None
    assert model.window_seconds == 10.0


def test_its_task_is_to_transcribe(tmp_path: Path) -> None:
    assert task_of(_directory(tmp_path)) is Task.TRANSCRIBE
    assert transcribes(tmp_path)


def test_other_models_do_not_transcribe(tmp_path: Path) -> None:
    directory = _directory(tmp_path, genai_config={"model": {"type": "qwen3"}})
    assert read_speech_model(directory) is None
    assert task_of(directory) is Task.GENERATE


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    tokenizer = {"added_tokens": [{"id": 9, "content": "<|endoftext|>"}], "model": {"vocab": _VOCABULARY}}
    with pytest.raises(ModelDirectoryError, match=r"tokenizer.json has no token <\|transcribe\|>"):
        read_speech_model(_directory(tmp_path, tokenizer=tokenizer))
