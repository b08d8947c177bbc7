"""Encoded images and audio of requests: `EncodedImage` and `PromptImages` for prompts with images (or with audio clips
in chats), and `EncodedAudio` for a recording to transcribe. The encoder worker creates them, and the runner passes them
to the model.

A model's vocabulary has one token id for all features (vectors that the encoder has computed) of all images. Within the
engine each feature has an id of its own, which is negative. Tokens with equal ids therefore always have an equal KV
cache, and the search for cached prefixes and drafts treats images like text.
"""

from collections import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.messages.generation_request import Image

# Features of an image, at most.
_MAX_FEATURES = 1 << 20
# The largest id of a feature; -1 is no token (engine/scheduling/drafts.py).
_FIRST_ID = -2


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """One image of a prompt after encoding: the features, vectors that replace the embeddings of the image's tokens in
    the model.
    """

    # A number that only equal images share.
    serial: int
    # The features [features, hidden_size].
    features: NDArray[Any]

    @property
    def num_bytes(self) -> int:
        """Size of the features in bytes."""
        return int(self.features.nbytes)

    @property
    def ids(self) -> list[int]:
        """The engine's token ids of the image's features: a negative number for each, equal for equal images only."""
        first = _FIRST_ID - self.serial * _MAX_FEATURES
        return list(range(first, first - len(self.features), -1))


class PromptImages:
    """A prompt with its encoded images, or with its encoded audio clips, which are treated alike.

    `prompt` has the token ids, `images` the places of the images in the prompt, and `encoded` the features of each
    image. `image_token` is the token id that stands for each feature in the model's vocabulary. Raises ValueError if
    the part of the prompt that belongs to an image does not have as many of these tokens as the image has features.
    """

    def __init__(
        self, prompt: list[int], images: abc.Sequence[Image], encoded: abc.Sequence[EncodedImage], image_token: int
    ) -> None:
        # The prompt, with an id of its own for each feature.
        self.prompt = list(prompt)
        self._image_token = image_token
        # Frames, rows and columns of each image that has them.
        self.grids = [image.grid for image in images if image.grid is not None]
        self._features = {image.serial: image.features for image in encoded}
        for image, encoded_image in zip(images, encoded, strict=True):
            end = image.start + image.num_tokens
            indices = [index for index in range(image.start, end) if prompt[index] == image_token]
            if len(indices) != len(encoded_image.features):
                raise ValueError(f"an image has {len(encoded_image.features)} features and {len(indices)} tokens")
            for index, id in zip(indices, encoded_image.ids, strict=True):
                self.prompt[index] = id
        # Of each token of the prompt, int64 [3, tokens]; None if the positions are those of text.
        self._positions = _positions(len(prompt), images) if self.grids else None
        # Added to the index of an answer's token for its position.
        self._answer_offset = 0 if self._positions is None else int(self._positions.max()) + 1 - len(prompt)

    def model_tokens(self, tokens: abc.Sequence[int]) -> list[int]:
        """Return `tokens` with the ids that the model knows: its token for images replaces the negative ids of
        features.
        """
        return [token if token >= 0 else self._image_token for token in tokens]

    def features(self, tokens: abc.Sequence[int]) -> NDArray[Any] | None:
        """Return the features [features, hidden_size] of the images' tokens among `tokens`, in order; None if there are
        none. The negative ids of these tokens say which feature each one stands for.
        """
        keys = [divmod(_FIRST_ID - token, _MAX_FEATURES) for token in tokens if token < 0]
        return np.stack([self._features[serial][index] for serial, index in keys]) if keys else None

    def positions(self, first: int, num_tokens: int) -> NDArray[np.int64] | None:
        """Return the positions [3, num_tokens] of `num_tokens` tokens of the prompt and the answer, beginning with the
        one at the index `first`: the positions on the axes of frames, rows and columns.

        None if the position of each token is its index, as in prompts of text only.
        """
        if self._positions is None:
            return None
        num_known = self._positions.shape[1]
        prompt_positions = self._positions[:, first : first + num_tokens]
        answer_positions = np.arange(max(first, num_known), first + num_tokens, dtype=np.int64) + self._answer_offset
        return np.concatenate([prompt_positions, np.broadcast_to(answer_positions, (3, len(answer_positions)))], axis=1)


def _positions(num_tokens: int, images: abc.Sequence[Image]) -> NDArray[np.int64]:
    """Return the positions [3, num_tokens] of a prompt's tokens on three axes: frames, rows and columns (M-RoPE of
    Qwen2-VL, arXiv 2409.12191, section 2.1).

    A token of text has the same position on each axis. Within one of `images`, the positions count frames, rows and
    columns from the position at which the image begins; text after the image continues behind the largest of them.
    """
    parts: list[NDArray[np.int64]] = []
    index = position = 0

    def add_text(end: int) -> None:
        nonlocal index, position
        parts.append(np.broadcast_to(np.arange(position, position + end - index), (3, end - index)))
        index, position = end, position + end - index

    for image in images:
        grid = image.grid
        if grid is None:
            continue
        add_text(image.start)
        parts.append(np.indices(grid).reshape(3, -1) + position)
        index, position = image.start + image.num_tokens, position + max(grid)
    add_text(num_tokens)
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class EncodedAudio:
    """One window of a recording to transcribe: its spectrogram, and the keys and values that the model's encoder has
    computed from it, which the decoder reads.
    """

    # The spectrogram that the encoder reads, float32 [1, mels, frames].
    features: NDArray[Any]
    # The keys and values [1, heads, frames, head_size] that the encoder returns, in the order of
    # `DecoderGraph.cross_states`. Empty if onnxruntime-genai runs the encoder.
    states: list[NDArray[Any]]
    # The seconds at which the tokens of the request's alignment begin; empty if the request does not ask for them.
    token_times: Sequence[float] = ()

    @property
    def num_bytes(self) -> int:
        """Size of the spectrogram and of all keys and values in bytes."""
        return self.features.nbytes + sum(array.nbytes for array in self.states)
