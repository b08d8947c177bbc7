"""onnxruntime-genai's processor of sound without weights: spectrograms of windows."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from genai_server.media.audio.features import SpeechFeatures
from tests.media.audio.sounds import encoded, sentence, tone
from tests.media.audio.speech_directory import make_speech_directory

BUILT = Path(__file__).parents[2] / "built_models" / "whisper"


def _features(folder: Path, seconds: int = 10, mels: int = 80, type: int = TensorProto.FLOAT) -> SpeechFeatures:
    model_dir = make_speech_directory(folder / "model", seconds=seconds, mels=mels, type=type)
    (folder / "stub").mkdir()
    return SpeechFeatures(model_dir, folder / "stub")


@pytest.mark.parametrize(("seconds", "mels"), [(30, 80), (30, 128), (10, 80)])
def test_window_becomes_a_spectrogram(own_folder: Path, seconds: int, mels: int) -> None:
    found = _features(own_folder, seconds, mels).compute(tone(seconds))
    assert found.shape == (1, mels, 100 * seconds)
    assert found.dtype == np.float32
    assert len(set(found[0, :, 5:-5].argmax(axis=0).tolist())) == 1


@pytest.mark.parametrize("seconds", [0, 0.0001, 0.02, 1, 9.9])
def test_shorter_window_is_padded_with_silence(own_folder: Path, seconds: float) -> None:
    found = _features(own_folder).compute(tone(seconds))
    assert found.shape == (1, 80, 1000)
    assert np.ptp(found[0, :, round(100 * seconds) + 3 :]) == 0


def test_longer_window_is_cut(own_folder: Path) -> None:
    features = _features(own_folder)
    assert features.compute(tone(12)).shape == (1, 80, 1000)


@pytest.mark.parametrize("type", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_features_for_smaller_types_have_32_bits(own_folder: Path, type: int) -> None:
    whole = _features(own_folder).compute(sentence())
    (own_folder / "other").mkdir()
    found = _features(own_folder / "other", type=type).compute(sentence())
    assert found.dtype == np.float32
    if type == TensorProto.BFLOAT16:  # the engine converts them
        assert np.array_equal(found, whole)
    else:
        assert np.array_equal(found, found.astype(np.float16))
        assert np.allclose(found, whole, atol=1e-3)


def test_spectrogram_is_that_of_the_complete_model(own_folder: Path) -> None:
    import onnxruntime_genai as og

    (own_folder / "stub").mkdir()
    found = SpeechFeatures(BUILT, own_folder / "stub").compute(sentence())
    whole = og.Model(str(BUILT)).create_multimodal_processor()
    named = whole(["<|startoftranscript|>"], audios=og.Audios.open_bytes(encoded(sentence())))
    assert np.array_equal(found, named["audio_features"].as_numpy())


def test_no_weights_are_needed(own_folder: Path) -> None:
    model_dir, stub = own_folder / "model", own_folder / "stub"
    shutil.copytree(BUILT, model_dir, ignore=shutil.ignore_patterns("*.data"))
    stub.mkdir()
    assert SpeechFeatures(model_dir, stub).compute(sentence()).shape[0] == 1
