"""Sounds of chats, prepared by onnxruntime-genai's processor without the model's weights."""

import numpy as np
import pytest

from genai_server.media.images.audio_processor import AudioProcessor
from genai_server.media.images.processor import UnusableImage
from genai_server.model_files.speech_and_vision import read_vision_model
from tests.media.audio.sounds import encoded, sentence, silence, tone
from tests.running_server import ROOT

MODEL = ROOT / "tests" / "built_models" / "lfm2-audio"


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> AudioProcessor:
    model = read_vision_model(MODEL)
    assert model is not None
    return AudioProcessor(model, MODEL, tmp_path_factory.mktemp("stub"))


@pytest.mark.parametrize("seconds", [0.2, 1.0, 1.01, 20.0])
def test_a_token_stands_for_80_ms(processor: AudioProcessor, seconds: float) -> None:
    found = processor.process(encoded(tone(seconds)), 60)
    frames = found.tensors["audio_embeds"].shape[1]
    assert len(found.expansion) == -(-frames // 8)
    assert abs(len(found.expansion) - seconds / 0.08) <= 1
    assert set(found.expansion) == {3}
    assert found.grid is None
    assert "input_ids" not in found.tensors


def test_formats_and_channels_make_the_same_spectrogram(processor: AudioProcessor) -> None:
    expected = processor.process(encoded(sentence()), 60).tensors["audio_embeds"]
    for file in (encoded(sentence(), "flac", "flac"), encoded(sentence(), layout="stereo")):
        np.testing.assert_allclose(processor.process(file, 60).tensors["audio_embeds"], expected, atol=1e-3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is an empty file"),
        (b"no sound", "is not a flac"),
        (encoded(silence(2.0)), "may be at most 1 s long"),
        (encoded(tone(0.001)), "is refused by the model's audio processor|is too short"),
    ],
)
def test_unusable_sound_is_refused_with_its_reason(processor: AudioProcessor, data: bytes, reason: str) -> None:
    with pytest.raises(UnusableImage, match=reason):
        processor.process(data, 1)
