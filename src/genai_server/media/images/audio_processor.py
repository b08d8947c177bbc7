"""Prepares audio clips of chats as input of a model, with onnxruntime-genai's audio processor and without loading the
model's weights. It runs in a worker process (process.py).
"""

import io
from pathlib import Path
from typing import Any

from genai_server.media.audio.decoding import UnusableRecording, decode
from genai_server.media.audio.features import wav_file
from genai_server.media.images.processor import PROMPT_TENSORS, ProcessedImage, UnusableImage
from genai_server.model_files.speech_and_vision import SAMPLE_RATE, VisionModel
from genai_server.model_files.stub_directory import write_stub

_GRAPHS = ("speech", "embedding", "decoder")
# What stands for one audio clip in the library's prompts. It need not be a token.
_MARKER = "<|audio|>"
# Half a second of silence, in bytes.
_SILENCE = bytes(SAMPLE_RATE)


class AudioProcessor:
    """Prepares audio clips for the model in the folder `model_dir`, with onnxruntime-genai's audio processor.

    `folder` must be empty; the files that the library needs are written there, and must not be changed while the object
    is used. The constructor raises the library's own exceptions if the files of the model cannot be used.
    """

    def __init__(self, model: VisionModel, model_dir: Path, folder: Path) -> None:
        import onnxruntime_genai

        self._library: Any = onnxruntime_genai
        self._token = model.image_token_id
        write_stub(model_dir, folder, _GRAPHS)
        self._processor = self._library.Model(str(folder)).create_multimodal_processor()
        self.process_pcm(_SILENCE)  # one-time work is done before the first clip is timed

    def process(self, data: bytes, max_seconds: int) -> ProcessedImage:
        """Decode an audio file and return the model's inputs for it.

        Raises UnusableImage if the file cannot be decoded, is longer than `max_seconds` or cannot be used by the model.
        """
        pcm = io.BytesIO()
        try:
            decode(io.BytesIO(data), pcm, len(data), max_seconds)
        except UnusableRecording as error:
            raise UnusableImage(str(error)) from None
        return self.process_pcm(pcm.getvalue())

    def process_pcm(self, pcm: bytes) -> ProcessedImage:
        """Return the model's inputs for the samples `pcm`, which are mono, of 16 bits and at 16 kHz.

        Raises UnusableImage if the model's processor refuses them.
        """
        try:
            named = self._processor(_MARKER, audios=self._library.Audios.open_bytes(wav_file(pcm)))
            tensors = {name: named[name].as_numpy() for name in named.keys()}  # noqa: SIM118
        except RuntimeError as error:
            raise UnusableImage(f"is refused by the model's audio processor: {error}") from None
        expansion = [token for token in tensors["input_ids"].reshape(-1).tolist() if token == self._token]
        if not expansion:
            raise UnusableImage("is too short for the model")
        tensors = {name: tensor for name, tensor in tensors.items() if name not in PROMPT_TENSORS}
        return ProcessedImage(expansion, None, tensors)
