"""Computes the spectrograms that a speech model takes as input, with onnxruntime-genai's audio processor and without
loading the model's weights.
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
    """Computes spectrograms for the speech model in the folder `model_dir`, with onnxruntime-genai's audio processor.

    `folder` must be empty; the files that the library needs are written there, and must not be changed or removed while
    the object is used. The constructor raises the library's own exceptions if the files of the model cannot be used.
    """

    def __init__(self, model_dir: Path, folder: Path) -> None:
        import onnxruntime_genai

        self._library: Any = onnxruntime_genai
        write_stub(model_dir, folder, _GRAPHS)
        self._processor = self._library.Model(str(folder)).create_multimodal_processor()

    def compute(self, samples: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
        """Return the log-mel spectrogram of a window of a recording, with shape [1, mels, frames].

        `samples` are mono samples at 16 kHz. The spectrogram is padded or cut to the model's length.
        """
        if len(samples) < _MIN_SAMPLES:
            samples = np.pad(samples, (0, _MIN_SAMPLES - len(samples)))
        named = self._processor(
            [_PROMPT], audios=self._library.Audios.open_bytes(wav_file(samples.astype("<i2").tobytes()))
        )
        features: npt.NDArray[np.float32] = named[FEATURES].as_numpy().astype(np.float32)
        return features


def wav_file(pcm: bytes) -> bytes:
    """Return the content of a WAV file with the samples `pcm`, which are mono, of 16 bits and at 16 kHz."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(pcm)
    return written.getvalue()
