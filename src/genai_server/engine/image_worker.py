"""Encodes the images of prompts, or their audio, for models whose prompts contain features of these."""

from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any

from numpy.typing import NDArray

from genai_server.engine.encoder_worker import EncoderWorker, Tensors
from genai_server.engine.prompt_images import EncodedImage, PromptImages
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField
from genai_server.messages.generation_request import GenerationRequest

# Images whose ids are remembered, so that cached prefixes with them are found after their features were dropped.
_MAX_SERIALS = 100_000


class ImageWorker(EncoderWorker[EncodedImage]):
    """Encodes images, one at a time, into features [features, hidden_size], which take the place of token embeddings.

    With `has_audio`, the inputs are audio instead of images.
    """

    noun = "an image"

    def __init__(
        self,
        open_encoder: Callable[[], Callable[[Tensors], NDArray[Any]]],
        image_token: int,
        max_bytes: int,
        *,
        has_audio: bool = False,
    ) -> None:
        super().__init__(open_encoder, max_bytes)
        self._nouns = "images"
        if has_audio:
            self.noun, self._nouns = "a sound", "sounds"
        # The token that the model has for all features of images.
        self.image_token = image_token
        numbers = count()
        # Gives each digest a number that no other image has had.
        self._serial = lru_cache(_MAX_SERIALS)(lambda digest: next(numbers))

    def has_inputs(self, request: GenerationRequest) -> bool:
        return bool(request.images)

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField if the prompt has image tokens outside of images, or if the request has audio to
        transcribe.

        Each image token needs a feature. For the same reason the prediction, `logit_bias` and `allowed_token_ids` of a
        request must not make the model generate one.
        """
        if request.sound is not None:
            raise InvalidField("sound", "cannot be read by this model")
        token = self.image_token
        own = sum(request.prompt[image.start : image.start + image.num_tokens].count(token) for image in request.images)
        if (given := request.prompt.count(token)) != own:
            raise InvalidField(
                "prompt", f"has {given - own} tokens that stand for {self._nouns} (id {token}) and belong to none"
            )
        if token in request.prediction:
            raise InvalidField("prediction", f"must not have the token {token}, which stands for {self._nouns}")
        if request.sampling.logit_bias.get(token, 0) > 0:
            raise InvalidField("logit_bias", f"must not have the token {token}, which stands for {self._nouns}")
        allowed = request.sampling.allowed_tokens
        if allowed and allowed[token // 8] >> token % 8 & 1:
            raise InvalidField("allowed_token_ids", f"must not have the token {token}, which stands for {self._nouns}")

    def _encode_all(self, sequence: Sequence) -> PromptImages:
        request = sequence.request
        encoded = [self._encoded(sequence, image.digest, image.path) for image in request.images]
        return PromptImages(request.prompt, request.images, encoded, self.image_token)

    def _made(self, digest: str, tensors: Tensors, request: GenerationRequest) -> EncodedImage:
        return EncodedImage(self._serial(digest), self._encode(tensors))
