"""Runs the encoder of a model for speech."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.encoded_sound import EncodedSound
from genai_server.engine.model.session_options import open_with, session_options
from genai_server.engine.model.speech_files import EncoderFiles
from genai_server.errors import RunnerFailed, in_one_line
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from genai_server.options.session import SPINNING
from genai_server.speech_model import FEATURES

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def unencoded(tensors: Mapping[str, NDArray[Any]]) -> EncodedSound:
    """A sound that the library encodes itself. Raises RunnerFailed."""
    if FEATURES not in tensors:
        raise RunnerFailed(f"a sound has no {FEATURES}")
    return EncodedSound(tensors[FEATURES], [])


class SoundEncoder:
    """Runs the encoder's graph. Its threads do not wait actively, because the decoder runs at the same time."""

    def __init__(
        self, files: EncoderFiles, threads: int, options: DeviceOptions = DEFAULT_OPTIONS, *, optimized: bool = False
    ) -> None:
        self._files = files
        found = session_options(options, threads, optimized=optimized)
        found.add_session_config_entry(SPINNING, "0")
        self._session: Any = open_with(files.path, found, options)
        (features,) = self._session.get_inputs()
        self._type = _TYPES[features.type]
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
