"""Encoded audio, to which the decoder of a speech recognition model attends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class EncodedAudio:
    """One window of a recording, as the encoder made it for the decoder."""

    # What the encoder reads, float32 [1, mels, frames].
    features: NDArray[Any]
    # What it makes of them: keys and values [1, heads, frames, head_size], in the order of `DecoderGraph.cross_states`.
    # Empty if the library runs the encoder.
    states: list[NDArray[Any]]
    # For one request: when each token of its alignment begins, in seconds.
    token_times: Sequence[float] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays in memory."""
        return self.features.nbytes + sum(array.nbytes for array in self.states)
