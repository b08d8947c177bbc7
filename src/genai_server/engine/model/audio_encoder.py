"""Runs the encoder of a speech recognition model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from genai_server.engine.encoded_audio import EncodedAudio
from genai_server.engine.model.session_options import NUMPY_TYPES, open_encoder
from genai_server.engine.model.speech_files import EncoderFiles
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.model_files.speech_model import FEATURES
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions


def unencoded(tensors: Mapping[str, NDArray[Any]]) -> EncodedAudio:
    """Audio features that onnxruntime-genai will encode itself. Raises RunnerFailed if the tensors lack them."""
    if FEATURES not in tensors:
        raise RunnerFailed(f"a sound has no {FEATURES}")
    return EncodedAudio(tensors[FEATURES], [])


class AudioEncoder:
    """Runs the graph of the encoder, or, if `packed` is given, the graph with packed products at that path."""

    def __init__(
        self,
        files: EncoderFiles,
        threads: int,
        options: DeviceOptions = DEFAULT_OPTIONS,
        packed: Path | None = None,
    ) -> None:
        self._files = files
        self._session: Any = open_encoder(packed or files.path, threads, options, is_packed=packed is not None)
        (features,) = self._session.get_inputs()
        self._type = NUMPY_TYPES[features.type]
        # Mels and frames.
        self.shape: tuple[int, ...] = tuple(features.shape[1:])

    def encode(self, tensors: Mapping[str, NDArray[Any]]) -> EncodedAudio:
        """Encode the features of one window of a recording. Raises RunnerFailed."""
        features = tensors.get(FEATURES)
        if features is None or features.shape != (1, *self.shape):
            given = None if features is None else features.shape
            raise RunnerFailed(f"a sound needs features [1, {', '.join(map(str, self.shape))}], given {given}")
        try:
            states = self._session.run(list(self._files.presents), {self._files.features: features.astype(self._type)})
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"a sound cannot be encoded: {in_one_line(error)}") from error
        return EncodedAudio(features, states)
