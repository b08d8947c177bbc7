"""Runs the encoder of a model for speech."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from genai_server.engine.encoded_sound import EncodedSound
from genai_server.engine.model.session_options import NUMPY_TYPES, open_encoder
from genai_server.engine.model.speech_files import EncoderFiles
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.model_files.speech_model import FEATURES
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions


def unencoded(tensors: Mapping[str, NDArray[Any]]) -> EncodedSound:
    """A sound that the library encodes itself. Raises RunnerFailed."""
    if FEATURES not in tensors:
        raise RunnerFailed(f"a sound has no {FEATURES}")
    return EncodedSound(tensors[FEATURES], [])


class SoundEncoder:
    """Runs the encoder's graph, or the one with packed products at `packed`."""

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

    def encode(self, tensors: Mapping[str, NDArray[Any]]) -> EncodedSound:
        """Encode the features of a window. Raises RunnerFailed."""
        features = tensors.get(FEATURES)
        if features is None or features.shape != (1, *self.shape):
            given = None if features is None else features.shape
            raise RunnerFailed(f"a sound needs features [1, {', '.join(map(str, self.shape))}], given {given}")
        try:
            states = self._session.run(list(self._files.presents), {self._files.features: features.astype(self._type)})
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise RunnerFailed(f"a sound cannot be encoded: {in_one_line(error)}") from error
        return EncodedSound(features, states)
