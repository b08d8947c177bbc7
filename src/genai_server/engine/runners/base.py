"""What the engine's loop asks of a runner: the one place that drives a model."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from genai_server.generation import ModelInfo

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]


class Terminated(Exception):
    """The sequence's session is in the terminated state (runtime option terminate_session)."""


class Runner(Protocol):
    """Runs sequences of tokens through a model; used by one thread only.

    A sequence is named by its id between `open` and `close`. Everything but `close` may raise RunnerFailed, which
    concerns this sequence only.
    """

    @property
    def model(self) -> ModelInfo:
        """The model that was loaded."""
        ...

    def open(self, sequence: int, max_length: int) -> None:
        """Begin a sequence that grows to at most `max_length` tokens."""
        ...

    def forward(self, sequence: int, tokens: Tokens) -> Logits:
        """Read the next tokens, one forward pass; returns the logits [vocab_size] after the last of them.

        The array may be overwritten by the next pass. Raises Terminated if the session is terminated.
        """
        ...

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        """Set a runtime option of onnxruntime-genai; `enable_profiling` takes "0" or the path prefix of the files."""
        ...

    def close(self, sequence: int) -> None:
        """End a sequence and free its memory."""
        ...
