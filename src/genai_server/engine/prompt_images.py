"""The images of a prompt: the ids, features and positions of their tokens.

All features of images have one token id in the model's vocabulary. Within the engine each feature has an id of its own,
which is negative. So equal ids mean equal keys and values, with images as without, and cached prefixes and drafts need
no rule for images.
"""

from collections.abc import Sequence as Several
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
    """The features of an image."""

    # Equal for equal images only.
    serial: int
    # [features, hidden_size].
    features: NDArray[Any]

    @property
    def num_bytes(self) -> int:
        """Its size in memory."""
        return int(self.features.nbytes)

    @property
    def ids(self) -> list[int]:
        """An id for each feature."""
        first = _FIRST_ID - self.serial * _MAX_FEATURES
        return list(range(first, first - len(self.features), -1))


class PromptImages:
    """The images of one prompt. Raises ValueError if an image has other features than the prompt has tokens for it.

    `image_token` is the id that the model has for all features.
    """

    def __init__(
        self, prompt: list[int], images: Several[Image], encoded: Several[EncodedImage], image_token: int
    ) -> None:
        # The prompt, with an id of its own for each feature.
        self.prompt = list(prompt)
        self._image_token = image_token
        # Frames, rows and columns of each image that has them.
        self.grids = [image.grid for image in images if image.grid is not None]
        self._features = {image.serial: image.features for image in encoded}
        for image, found in zip(images, encoded, strict=True):
            end = image.start + image.num_tokens
            places = [place for place in range(image.start, end) if prompt[place] == image_token]
            if len(places) != len(found.features):
                raise ValueError(f"an image has {len(found.features)} features and {len(places)} tokens")
            for place, id in zip(places, found.ids, strict=True):
                self.prompt[place] = id
        # Of each token of the prompt, int64 [3, tokens]; None if the positions are those of text.
        self._positions = _positions(len(prompt), images) if self.grids else None
        # Added to the places of the answer's tokens for their positions.
        self._behind = 0 if self._positions is None else int(self._positions.max()) + 1 - len(prompt)

    def model_tokens(self, tokens: Several[int]) -> list[int]:
        """The tokens with the ids that the model knows."""
        return [token if token >= 0 else self._image_token for token in tokens]

    def features(self, tokens: Several[int]) -> NDArray[Any] | None:
        """The features [features, hidden_size] among some tokens, in their order; None without any."""
        places = [divmod(_FIRST_ID - token, _MAX_FEATURES) for token in tokens if token < 0]
        return np.stack([self._features[serial][index] for serial, index in places]) if places else None

    def positions(self, first: int, num_tokens: int) -> NDArray[np.int64] | None:
        """The positions [3, num_tokens] from token `first` on, of prompt and answer; None if they are those of text."""
        if self._positions is None:
            return None
        num_known = self._positions.shape[1]
        known = self._positions[:, first : first + num_tokens]
        others = np.arange(max(first, num_known), first + num_tokens, dtype=np.int64) + self._behind
        return np.concatenate([known, np.broadcast_to(others, (3, len(others)))], axis=1)


def _positions(num_tokens: int, images: Several[Image]) -> NDArray[np.int64]:
    """Positions on three axes: frames, rows and columns (Qwen2-VL, arXiv 2409.12191, section 2.1, M-RoPE).

    A text's tokens have the same position on each axis. Those of an image count on each axis from the position at which
    it begins; the text behind it continues from the largest.
    """
    parts: list[NDArray[np.int64]] = []
    place = position = 0

    def add_text(end: int) -> None:
        nonlocal place, position
        parts.append(np.broadcast_to(np.arange(position, position + end - place), (3, end - place)))
        place, position = end, position + end - place

    for image in images:
        grid = image.grid
        if grid is None:
            continue
        add_text(image.start)
        parts.append(np.indices(grid).reshape(3, -1) + position)
        place, position = image.start + image.num_tokens, position + max(grid)
    add_text(num_tokens)
    return np.concatenate(parts, axis=1)
