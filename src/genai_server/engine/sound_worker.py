"""Encodes the sounds that are transcribed."""

from genai_server.engine.encoded_sound import EncodedSound
from genai_server.engine.encoder_worker import EncoderWorker, Tensors
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField
from genai_server.messages.generation_request import GenerationRequest


class SoundWorker(EncoderWorker[EncodedSound]):
    """The encoder makes an EncodedSound of the tensors of a window."""

    noun = "a sound"

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
        return self._encoded(sequence, sound.digest, sound.path)

    def _made(self, digest: str, tensors: Tensors) -> EncodedSound:
        found: EncodedSound = self._encode(tensors)
        return found
