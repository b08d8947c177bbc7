"""One request inside the engine."""

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.sampler import Sampler
from genai_server.generation import GenerationRequest, Phases
from genai_server.timing import Clock

Tokens = NDArray[np.int32]


class Sequence:
    """A request with the tokens that it has produced; `id` is unique in the engine's life, `origin` who wants it.

    `unread` are the tokens that the model has not seen yet: the rest of the prompt, or the last token produced.
    `profile` is the prefix that its passes shall be profiled under from now on, `active_profile` the one that the
    runner knows; "0" is none. `profiled_from` is the output token from which it is profiled.
    """

    def __init__(self, id: int, origin: tuple[int, int], request: GenerationRequest, clock: Clock) -> None:
        self.id = id
        self.origin = origin
        self.request = request
        self.sampler = Sampler(request.sampling, request.prompt)
        self.unread: Tokens = np.array(request.prompt, dtype=np.int32)
        self.num_read = 0
        self.num_produced = 0
        self._clock = clock
        self._arrived = clock()
        self._started: float | None = None
        self._first: float | None = None
        self._last = self._arrived
        self.profile = "0"
        self.active_profile = "0"
        self.profiled_from = 0

    @property
    def max_length(self) -> int:
        """Tokens that the sequence can grow to, prompt included."""
        return min(self.request.max_length, len(self.request.prompt) + self.request.max_tokens)

    @property
    def is_prefilling(self) -> bool:
        """Whether the model has not seen the whole prompt yet."""
        return self.num_produced == 0

    @property
    def is_full(self) -> bool:
        """Whether no further token may be produced."""
        return len(self.request.prompt) + self.num_produced >= self.max_length

    def take(self, most: int) -> Tokens:
        """The next tokens for the model to read, at most `most`."""
        if self._started is None:
            self._started = self._clock()
        tokens, self.unread = self.unread[:most], self.unread[most:]
        self.num_read += len(tokens)
        return tokens

    def append(self, token: int) -> None:
        """Take a token that the model has produced."""
        self.unread = np.array([token], dtype=np.int32)
        self.num_produced += 1
        self._last = self._clock()
        if self._first is None:
            self._first = self._last

    def phases(self) -> Phases:
        """Where the time went up to now."""
        now = self._clock()
        started = now if self._started is None else self._started
        first = now if self._first is None else self._first
        return Phases(queue=started - self._arrived, prefill=first - started, decode=max(0.0, self._last - first))
