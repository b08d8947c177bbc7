"""When tokens are spoken, by the graphs of the real builder."""

import io
import json
import shutil
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest

from genai_server.apis.transcriptions.words import words_of
from genai_server.engine.decoder_graph import DoesNotFit
from genai_server.engine.encoded_audio import EncodedAudio
from genai_server.engine.model.aligner import Aligner, alignment_heads, why_no_times
from genai_server.engine.model.audio_encoder import AudioEncoder
from genai_server.engine.model.speech_files import read_cross_decoder, read_encoder_files
from genai_server.errors import RunnerFailed
from genai_server.media.audio.features import SpeechFeatures
from genai_server.messages.generation_request import Alignment
from genai_server.model_files.speech_model import FEATURES, read_speech_model
from genai_server.text.codec import load_text_codec
from tests.running_server import ROOT

BUILT, DEMO = ROOT / "tests" / "built_models" / "whisper", ROOT / "models" / "demo-speech"
RECORDING = ROOT / "tests" / "recordings" / "two_sentences.wav"


def encoded(directory: Path, features: np.ndarray) -> EncodedAudio:
    return AudioEncoder(read_encoder_files(directory), threads=1).encode({FEATURES: features.astype(np.float32)})


def test_keys_and_values_of_sounds_have_a_known_form(tmp_path: Path) -> None:
    directory = shutil.copytree(BUILT, tmp_path / "model", ignore=shutil.ignore_patterns("*.data"))
    decoder = read_cross_decoder(directory)
    model = onnx.load(str(decoder.path), load_external_data=False)
    (sounds,) = (value for value in model.graph.input if value.name == decoder.cross_states[0].past)
    del sounds.type.tensor_type.shape.dim[3]
    onnx.save(model, str(decoder.path))
    with pytest.raises(DoesNotFit, match="keys and values of sounds"):
        read_cross_decoder(directory)


def test_heads_are_those_of_the_file_or_the_last_half(tmp_path: Path) -> None:
    directory = shutil.copytree(DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("*.data", "*.wav"))
    decoder = read_cross_decoder(directory)
    assert alignment_heads(directory, decoder) == {2: [0, 1], 3: [0, 1]}
    file = directory / "generation_config.json"
    config = json.loads(file.read_text())
    for given, found in ([[1, 0], [3, 1], [1, 1]], {1: [0, 1], 3: [1]}), ([[9, 0]], None), ("yes", None), ([], None):
        file.write_text(json.dumps(config | {"alignment_heads": given}))
        if found is None:
            assert "generation_config.json has" in why_no_times(directory)
            with pytest.raises(DoesNotFit):
                alignment_heads(directory, decoder)
        else:
            assert alignment_heads(directory, decoder) == found
            assert why_no_times(directory) == ""


def test_words_of_real_speech_have_their_times(tmp_path: Path) -> None:
    model = read_speech_model(DEMO)
    assert model is not None
    with wave.open(io.BytesIO(RECORDING.read_bytes())) as file:
        slow = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    samples = (2 * np.fft.irfft(np.fft.rfft(slow), 2 * len(slow))).astype(np.int16)
    sound = encoded(DEMO, SpeechFeatures(DEMO, tmp_path).compute(samples))
    codec = load_text_codec(DEMO, "cpu")
    text = codec.tokenizer.encode(" Turn on the printer in the office. Set a timer for ten seconds.")
    before = [model.start_of_transcript, model.languages["en"], model.transcribe, model.no_timestamps]
    alignment = Alignment([*before, *text, model.end_of_text], len(before), len(samples) / 16_000)
    times = Aligner(DEMO, threads=1).times(alignment, sound)
    words = words_of(text, times, codec.tokenizer.token_bytes, "en")
    codec.close()
    assert [word.text for word in words[:3]] == ["Turn", "on", "the"]
    assert times == sorted(times)
    begins = {word.text: word.start for word in words}
    # The sentences begin at 0.25 s and 2.76 s.
    assert begins["Turn"] < begins["on"] < 1.0
    assert 2.5 < begins["Set"] < 3.0
    assert 3.2 < begins["ten"] < 4.2
    assert 4.0 < words[-1].end < 4.77


def test_failure_of_the_graph_is_named() -> None:
    sound = encoded(BUILT, np.zeros((1, 80, 3000)))
    with pytest.raises(RunnerFailed, match="the times of tokens cannot be computed"):
        Aligner(BUILT, threads=1).times(Alignment([1, 10**8, 2], 1, 3.0), sound)
