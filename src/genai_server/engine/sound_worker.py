"""Encodes the sounds that are transcribed."""

import time
from collections.abc import Callable

from genai_server.engine.encoded_sound import EncodedSound
from genai_server.engine.encoder_worker import EncoderWorker, Tensors
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import InvalidField
from genai_server.messages.generation_request import GenerationRequest

# Seconds between two looks at the requests that hold sounds.
_POLL = 0.01


class SoundWorker(EncoderWorker[EncodedSound]):
    """The encoder makes an EncodedSound of the tensors of a window."""

    noun = "a sound"

    def __init__(
        self, open_encoder: Callable[[], Callable[[Tensors], EncodedSound]], max_bytes: int, max_ahead: int
    ) -> None:
        """`max_ahead` limits the sounds of requests that have not ended. Others are encoded when these have."""
        super().__init__(open_encoder, max_bytes)
        self._max_ahead = max_ahead

    def has_inputs(self, request: GenerationRequest) -> bool:
        return request.sound is not None

    def check(self, request: GenerationRequest) -> None:
        """Every request needs a sound."""
        if request.images:
            raise InvalidField("this model takes no images", param="images")
        if request.sound is None:
            raise InvalidField("this model transcribes speech only, and the request has no sound", param="sound")

    def _encode_all(self, sequence: Sequence) -> EncodedSound:
        sound = sequence.request.sound
        assert sound is not None
        # A sound takes much more memory than a prompt, so that the queue must not be full of them.
        while sequence.state is not SequenceState.ENDED and self._num_present() >= self._max_ahead:
            time.sleep(_POLL)
        return self._encoded(sequence, sound.digest, sound.path)

    def _made(self, digest: str, tensors: Tensors) -> EncodedSound:
        found: EncodedSound = self._encode(tensors)
        return found
