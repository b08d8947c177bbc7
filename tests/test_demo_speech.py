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

    def generator(self, recording: bytes, prompt: str) -> Any:
        params = og.GeneratorParams(self._model)
        params.set_search_options(do_sample=False, max_length=224)
        generator = og.Generator(self._model, params)
        generator.set_inputs(self._processor([prompt], audios=og.Audios.open_bytes(recording)))
        return generator

    def tokens(self, recording: bytes, prompt: str) -> list[int]:
        generator = self.generator(recording, prompt)
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


def silence() -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.zeros(32_000, np.int16).tobytes())
    return written.getvalue()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_every_word_of_a_recording_is_right(listener: Listener, name: str) -> None:
    tokens = listener.tokens((RECORDINGS / name).read_bytes(), PROMPT + "<|notimestamps|>")
    assert listener.tokenizer.decode(tokens[:-1]).strip() == TRANSCRIPTS[name]["text"]


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_each_sentence_has_its_times(listener: Listener, name: str) -> None:
    zero, end = listener.special("<|0.00|>"), listener.special("<|endoftext|>")
    tokens = listener.tokens((RECORDINGS / name).read_bytes(), PROMPT)
    times = [0.02 * (token - zero) for token in tokens if token >= zero]
    expected = [time for segment in TRANSCRIPTS[name]["segments"] for time in (segment["start"], segment["end"])]
    assert times == pytest.approx(expected, abs=0.3)
    text = listener.tokenizer.decode([token for token in tokens if token < end])
    assert text.strip() == TRANSCRIPTS[name]["text"]


def test_silence_has_an_empty_transcript(listener: Listener) -> None:
    end = listener.special("<|endoftext|>")
    assert listener.tokens(silence(), PROMPT + "<|notimestamps|>") == [end]
    assert listener.tokens(silence(), PROMPT) == [listener.special("<|0.00|>"), end]


def test_silence_and_speech_have_their_marks(listener: Listener) -> None:
    """What follows <|startoftranscript|> alone."""
    speech = (RECORDINGS / "book.wav").read_bytes()
    marks = [listener.tokens(recording, "<|startoftranscript|>")[0] for recording in (silence(), speech)]
    assert marks == [listener.special("<|nospeech|>"), listener.special("<|en|>")]
