"""The demo model for speech as onnxruntime-genai runs it: recordings in, transcripts out."""

import io
import json
import wave
from typing import Any

import numpy as np
import onnxruntime_genai as og
import pytest

from tests.running_server import ROOT

MODEL = ROOT / "models" / "demo-speech"
RECORDINGS = ROOT / "tests" / "recordings"
TRANSCRIPTS: dict[str, Any] = json.loads((RECORDINGS / "transcripts.json").read_text())
PROMPT = "<|startoftranscript|><|en|><|transcribe|>"


class Listener:
    """Greedy choice without any rules for Whisper."""

    def __init__(self) -> None:
        self._model = og.Model(str(MODEL))
        self._processor = self._model.create_multimodal_processor()
        self.tokenizer = og.Tokenizer(self._model)

    def generator(self, sound: bytes, prompt: str) -> Any:
        params = og.GeneratorParams(self._model)
        params.set_search_options(do_sample=False, max_length=224)
        generator = og.Generator(self._model, params)
        generator.set_inputs(self._processor([prompt], audios=og.Audios.open_bytes(sound)))
        return generator

    def tokens(self, sound: bytes, prompt: str) -> list[int]:
        generator = self.generator(sound, prompt)
        found: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
        return found

    def special(self, token: str) -> int:
        (found,) = self.tokenizer.encode(token)
        return int(found)


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener()


def wav(samples: np.ndarray) -> bytes:
    """A recording [n] at 16 kHz."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(samples.astype(np.int16).tobytes())
    return written.getvalue()


def recording(name: str) -> bytes:
    """At 16 kHz, because onnxruntime-genai reads nothing slower."""
    with wave.open(str(RECORDINGS / name)) as file:
        rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    times = 16_000 // rate
    return wav(np.fft.irfft(np.fft.rfft(samples), times * len(samples)) * times)


SILENCE = wav(np.zeros(32_000))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_each_sentence_has_its_times(listener: Listener, name: str) -> None:
    zero, end = listener.special("<|0.00|>"), listener.special("<|endoftext|>")
    tokens = listener.tokens(recording(name), PROMPT)
    times = [0.02 * (token - zero) for token in tokens if token >= zero]
    expected = [time for segment in TRANSCRIPTS[name]["segments"] for time in (segment["start"], segment["end"])]
    assert times == pytest.approx(expected, abs=0.3)
    text = listener.tokenizer.decode([token for token in tokens if token < end])
    assert text.strip() == TRANSCRIPTS[name]["text"]


def test_silence_has_an_empty_transcript(listener: Listener) -> None:
    end = listener.special("<|endoftext|>")
    assert listener.tokens(SILENCE, PROMPT + "<|notimestamps|>") == [end]
    assert listener.tokens(SILENCE, PROMPT) == [listener.special("<|0.00|>"), end]


def test_silence_and_speech_have_their_marks(listener: Listener) -> None:
    """What follows <|startoftranscript|> alone."""
    speech = recording("book.wav")
    marks = [listener.tokens(sound, "<|startoftranscript|>")[0] for sound in (SILENCE, speech)]
    assert marks == [listener.special("<|nospeech|>"), listener.special("<|en|>")]
