"""Encoded images and audio of a prompt, and the token ids and positions of images.

A model's vocabulary has one token id for all features of all images. Within the engine each feature has an id of its
own, which is negative. Tokens with equal ids therefore always have an equal KV cache, and the search for cached
prefixes and drafts treats images like text.
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
    """One image of a prompt after encoding: the features that replace the embeddings of its tokens."""

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
        """A negative token id for each feature, equal for equal images only."""
        first = _FIRST_ID - self.serial * _MAX_FEATURES
        return list(range(first, first - len(self.features), -1))


class PromptImages:
    """A prompt and its encoded images, or its encoded audio clips.

    `image_token` is the token id that stands for each feature in the model's vocabulary. Raises ValueError if the
    number of an image's features is not the number of these tokens in the part of the prompt that `images` names for
    it.
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
        """Return `tokens` as the model reads them: its image token replaces the negative ids of features."""
        return [token if token >= 0 else self._image_token for token in tokens]

    def features(self, tokens: abc.Sequence[int]) -> NDArray[Any] | None:
        """Return the features [features, hidden_size] of the image tokens in `tokens`, in order; None if there are
        none.
        """
        keys = [divmod(_FIRST_ID - token, _MAX_FEATURES) for token in tokens if token < 0]
        return np.stack([self._features[serial][index] for serial, index in keys]) if keys else None

    def positions(self, first: int, num_tokens: int) -> NDArray[np.int64] | None:
        """Return the positions [3, num_tokens] of the tokens of prompt and answer from index `first` on.

        None if each token's position is its index, as in prompts of text only.
        """
        if self._positions is None:
            return None
        num_known = self._positions.shape[1]
        prompt_positions = self._positions[:, first : first + num_tokens]
        answer_positions = np.arange(max(first, num_known), first + num_tokens, dtype=np.int64) + self._answer_offset
        return np.concatenate([prompt_positions, np.broadcast_to(answer_positions, (3, len(answer_positions)))], axis=1)


def _positions(num_tokens: int, images: abc.Sequence[Image]) -> NDArray[np.int64]:
    """Return the positions of a prompt's tokens on three axes: frames, rows and columns (M-RoPE of Qwen2-VL, arXiv
    2409.12191, section 2.1).

    A token of text has the same position on each axis. Within an image, the positions count frames, rows and columns
    from the position at which the image begins; text after the image continues behind the largest of them.
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
    """One window of a recording to transcribe: the spectrogram, and the keys and values that the encoder has computed
    from it.
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
        """Size of all arrays in bytes."""
        return self.features.nbytes + sum(array.nbytes for array in self.states)
