"""Encodes the audio of transcription requests."""

import time
from collections.abc import Callable
from dataclasses import replace

from genai_server.engine.encoded_audio import EncodedAudio
from genai_server.engine.encoder_worker import EncoderWorker, Tensors
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import InvalidField
from genai_server.messages.generation_request import Alignment, GenerationRequest

# Seconds between two looks at the requests that hold sounds.
_POLL = 0.01
# Returns the times of a transcript's tokens.
Align = Callable[[Alignment, EncodedAudio], list[float]]


class AudioWorker(EncoderWorker[EncodedAudio]):
    """Encodes windows of recordings for a speech recognition model."""

    noun = "a sound"

    def __init__(
        self,
        open_encoder: Callable[[], Callable[[Tensors], EncodedAudio]],
        max_bytes: int,
        max_ahead: int,
        open_aligner: Callable[[], Align] | None = None,
    ) -> None:
        """`max_ahead` limits the number of unfinished requests whose audio is encoded. Other requests wait for these.

        `open_aligner` is called when the first request needs token times; None if the model has none.
        """
        super().__init__(open_encoder, max_bytes)
        self._open_aligner = open_aligner
        self._align: Align | None = None
        self._max_ahead = max_ahead

    def has_inputs(self, request: GenerationRequest) -> bool:
        return request.sound is not None

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField for a request without audio, with images, or with unsupported alignment."""
        if request.images:
            raise InvalidField("images", "cannot be read by this model")
        if request.sound is None:
            raise InvalidField("sound", "is required: this model transcribes speech only")
        if request.alignment is not None and self._open_aligner is None:
            raise InvalidField("alignment", "is not supported: this model does not report when tokens are spoken")

    def _encode_all(self, sequence: Sequence) -> EncodedAudio:
        sound = sequence.request.sound
        assert sound is not None
        # A sound takes much more memory than a prompt, so that the queue must not be full of them.
        while sequence.state is not SequenceState.ENDED and self._num_present() >= self._max_ahead:
            time.sleep(_POLL)
        found = self._encoded(sequence, sound.digest, sound.path)
        alignment = sequence.request.alignment
        if alignment is None or self._open_aligner is None:
            return found
        if self._align is None:
            self._align = self._open_aligner()
        return replace(found, token_times=self._align(alignment, found))

    def _made(self, digest: str, tensors: Tensors, request: GenerationRequest) -> EncodedAudio:
        found: EncodedAudio = self._encode(tensors)
        return found
