"""Encodes the images or audio of requests in a separate thread, while other sequences continue to generate, and caches
recent results. `ImageWorker` is for models that read images or audio in chats, `AudioWorker` for models that
transcribe.

The result for a request is passed to the engine's loop as a message.
"""

import logging
import time
import zipfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.encoded_inputs import EncodedAudio, EncodedImage, PromptImages
from genai_server.engine.host import lower_cpu_priority
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.engine.worker_thread import WorkerThread
from genai_server.errors import GenaiServerError, InvalidField, RunnerFailed
from genai_server.messages.generation_request import Alignment, GenerationRequest

log = logging.getLogger(__name__)
# The tensors of an input, by the library's names.
Tensors = Mapping[str, NDArray[Any]]
# The encoded inputs of a request, or the error because of which they are missing.
Encoded = PromptImages | EncodedAudio | GenaiServerError


One = TypeVar("One", EncodedImage, EncodedAudio)


class RequestEnded(Exception):
    """Raised within the worker's thread to stop the encoding for a request that has ended."""


class EncoderWorker(ABC, Generic[One]):
    """Base class of workers that encode images or audio in a thread of their own. The engine's loop asks `check` and
    `has_inputs` about each request, and calls `submit` for those that have images or audio.

    A cache has all results for unfinished requests, so that no input is encoded twice, and up to `max_bytes` bytes of
    other results. `open_encoder` loads the encoder and returns the function that encodes. It is called in the worker's
    thread, whose low priority the encoder's own threads inherit, so that decoding comes first. The constructor raises
    what `open_encoder` raises.
    """

    # What one input is called in messages, such as "an image".
    noun: str

    def __init__(self, open_encoder: Callable[[], Callable[..., Any]], max_bytes: int) -> None:
        # Inputs encoded up to now, without those taken from the cache.
        self.num_encoded = 0
        self._max_bytes = max_bytes
        self._cached: OrderedDict[str, One] = OrderedDict()
        # Unfinished requests that have got encoded inputs, with the digests of the inputs.
        self._in_use: list[tuple[Sequence, str]] = []
        self._thread = WorkerThread("encoder", lower_cpu_priority)
        self._encode = self._thread.submit(open_encoder).result()

    def submit(self, sequence: Sequence, done: Callable[[Encoded], None]) -> None:
        """Start to encode all images or audio of the request of `sequence`. When that is done, `done` is called in the
        worker's thread with the result or an error. It is not called if the sequence ends before.
        """
        job = partial(self._prepare, sequence, done)
        self._thread.submit(job, tenant=sequence.tenant, low_priority=sequence.low_priority)

    @abstractmethod
    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField if the model cannot read the images or audio of `request`, or if the request lacks what
        the model needs.
        """

    @abstractmethod
    def has_inputs(self, request: GenerationRequest) -> bool:
        """Return whether a request has images or audio that must be encoded."""

    @abstractmethod
    def _encode_all(self, sequence: Sequence) -> PromptImages | EncodedAudio:
        """Encode all images or audio of a sequence's request, and return them with what the runner needs.
        Implementations call `_encoded` for each image or recording.
        """

    @abstractmethod
    def _made(self, digest: str, tensors: Tensors, request: GenerationRequest) -> One:
        """Encode one image or recording, and return the result. Implementations call `_encode`, the function that the
        loaded encoder has provided.

        `digest` identifies the image or recording, `tensors` are the input tensors of the encoder by their names, and
        `request` is the request to which the image or recording belongs.
        """

    def _prepare(self, sequence: Sequence, done: Callable[[Encoded], None]) -> None:
        try:
            done(self._encode_all(sequence))
        except RequestEnded:
            return
        except GenaiServerError as error:
            done(error)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            done(RunnerFailed(f"{self.noun} cannot be read: {error}"))
        except Exception:  # the request would wait for ever
            log.exception("request %s met an internal error while it was prepared", sequence.request.request_id)
            done(RunnerFailed("internal error; see the server log"))

    def _encoded(self, sequence: Sequence, digest: str, path: str) -> One:
        """Return one image or recording in encoded form, from the cache or by encoding the tensors in the file at
        `path`.

        `digest` identifies the image or recording. Raises RequestEnded if the sequence has ended, and OSError,
        ValueError or zipfile.BadZipFile if the file cannot be read.
        """
        if sequence.state is SequenceState.ENDED:
            raise RequestEnded
        encoded = self._cached.get(digest)
        if encoded is None:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as tensors:
                encoded = self._made(digest, dict(tensors), sequence.request)
            self.num_encoded += 1
            self._cached[digest] = encoded
        self._cached.move_to_end(digest)
        self._in_use.append((sequence, digest))
        self._drop_unused()
        return encoded

    def _num_present(self) -> int:
        """Return how many results unfinished requests use. A result that several requests use counts once for each."""
        self._in_use = [used for used in self._in_use if used[0].state is not SequenceState.ENDED]
        return len(self._in_use)

    def _drop_unused(self) -> None:
        """Remove results from the cache that no unfinished request uses, the least recently used first, until at most
        `max_bytes` bytes of such results are left.
        """
        self._num_present()
        present = {digest for _, digest in self._in_use}
        unused = [digest for digest in self._cached if digest not in present]
        num_bytes = sum(self._cached[digest].num_bytes for digest in unused)
        for digest in unused:
            if num_bytes <= self._max_bytes:
                return
            num_bytes -= self._cached.pop(digest).num_bytes


# Images whose ids are remembered, so that cached prefixes with them are found after their features were dropped.
_MAX_SERIALS = 100_000


class ImageWorker(EncoderWorker[EncodedImage]):
    """Encodes images, one at a time, into features [features, hidden_size], vectors that replace the embeddings of
    image tokens in the model.

    With `has_audio`, it encodes audio clips in chats in the same way. `open_encoder` loads the encoder and returns the
    function that encodes. `image_token` is the token id that stands for each feature in the model's vocabulary. The
    cache has up to `max_bytes` bytes of features that no unfinished request uses.
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
        serials = count()
        # Gives each digest a number that no other image has had.
        self._serial = lru_cache(_MAX_SERIALS)(lambda digest: next(serials))

    def has_inputs(self, request: GenerationRequest) -> bool:
        return bool(request.images)

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField if the model cannot read the images of a request, or if the request has audio to
        transcribe.

        Each image token in the prompt must belong to an image, because each needs a feature. For the same reason,
        `prediction`, `logit_bias` and `allowed_token_ids` of the request must not make the model generate an image
        token.
        """
        if request.sound is not None:
            raise InvalidField("sound", "cannot be read by this model")
        token = self.image_token
        in_images = sum(
            request.prompt[image.start : image.start + image.num_tokens].count(token) for image in request.images
        )
        if (total := request.prompt.count(token)) != in_images:
            raise InvalidField(
                "prompt", f"has {total - in_images} tokens that stand for {self._nouns} (id {token}) and belong to none"
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


# Seconds between two checks of the requests that have encoded audio.
_POLL = 0.01
# Returns the times of a transcript's tokens.
Align = Callable[[Alignment, EncodedAudio], list[float]]


class AudioWorker(EncoderWorker[EncodedAudio]):
    """Encodes windows of recordings for a model that transcribes speech, and finds the times of spoken tokens if a
    request asks for them.
    """

    noun = "a sound"

    def __init__(
        self,
        open_encoder: Callable[[], Callable[[Tensors], EncodedAudio]],
        max_bytes: int,
        max_ahead: int,
        open_aligner: Callable[[], Align] | None = None,
    ) -> None:
        """Start a worker whose thread loads the encoder with `open_encoder`, which returns the function that encodes.
        The cache has up to `max_bytes` bytes of encoded audio that no unfinished request uses.

        At most `max_ahead` unfinished requests have encoded audio at once; further requests wait. `open_aligner` loads
        the function that finds when tokens are spoken, as soon as a request asks for these times; None if the model
        cannot find them.
        """
        super().__init__(open_encoder, max_bytes)
        self._open_aligner = open_aligner
        self._align: Align | None = None
        self._max_ahead = max_ahead

    def has_inputs(self, request: GenerationRequest) -> bool:
        return request.sound is not None

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidField for a request without audio or with images, and for a request that asks for the times of
        tokens if the model cannot find them.
        """
        if request.images:
            raise InvalidField("images", "cannot be read by this model")
        if request.sound is None:
            raise InvalidField("sound", "is required: this model transcribes speech only")
        if request.alignment is not None and self._open_aligner is None:
            raise InvalidField("alignment", "is not supported: this model does not report when tokens are spoken")

    def _encode_all(self, sequence: Sequence) -> EncodedAudio:
        audio = sequence.request.sound
        assert audio is not None
        # Encoded audio takes much more memory than a prompt, so the queue must not be full of it.
        while sequence.state is not SequenceState.ENDED and self._num_present() >= self._max_ahead:
            time.sleep(_POLL)
        encoded = self._encoded(sequence, audio.digest, audio.path)
        alignment = sequence.request.alignment
        if alignment is None or self._open_aligner is None:
            return encoded
        if self._align is None:
            self._align = self._open_aligner()
        return replace(encoded, token_times=self._align(alignment, encoded))

    def _made(self, digest: str, tensors: Tensors, request: GenerationRequest) -> EncodedAudio:
        encoded: EncodedAudio = self._encode(tensors)
        return encoded
