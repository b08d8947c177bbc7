"""Computes spectrograms with onnxruntime-genai's audio processor for one model directory, without loading the
weights.
"""

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genai_server.model_files.speech_and_vision import FEATURES, SAMPLE_RATE
from genai_server.model_files.stub_directory import write_stub

_GRAPHS = ("encoder", "decoder")
# The processor encodes a prompt, too, which is not used.
_PROMPT = "<|startoftranscript|>"
# It fails for less than one frame of its spectrogram. The rest of a window is silence in any case.
_MIN_SAMPLES = 400


class SpeechFeatures:
    """onnxruntime-genai's audio processor for a model directory.

    `folder` must be empty, and its contents must not be changed or removed while the object is used. The constructor
    raises the library's own exceptions if the files of the model cannot be used.
    """

    def __init__(self, model_dir: Path, folder: Path) -> None:
        import onnxruntime_genai

        self._library: Any = onnxruntime_genai
        write_stub(model_dir, folder, _GRAPHS)
        self._processor = self._library.Model(str(folder)).create_multimodal_processor()

    def compute(self, samples: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
        """Return the log-mel spectrogram of a window, [1, mels, frames], padded or cut to the model's length.

        `samples` are mono samples at 16 kHz.
        """
        if len(samples) < _MIN_SAMPLES:
            samples = np.pad(samples, (0, _MIN_SAMPLES - len(samples)))
        named = self._processor(
            [_PROMPT], audios=self._library.Audios.open_bytes(wav_file(samples.astype("<i2").tobytes()))
        )
        features: npt.NDArray[np.float32] = named[FEATURES].as_numpy().astype(np.float32)
        return features


def wav_file(pcm: bytes) -> bytes:
    """The content of a WAV file with mono samples of 16 bits at 16 kHz."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(pcm)
    return written.getvalue()
