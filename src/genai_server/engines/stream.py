"""The API side's end of one request: an asynchronous iterator over what its engine sends."""

import asyncio
from collections import deque
from collections.abc import Callable

from genai_server.errors import GenaiServerError
from genai_server.generation import FinishReason, Phases


class TokenStream:
    """Batches of token ids as they arrive; at the end `reason` is set, `phases` and `num_cached`.

    Belongs to the event loop. Exactly one of `finish` and `fail` takes effect, the first. Who closes it before the end
    cancels the request in the engine. A slow reader gets several batches as one.
    """

    def __init__(self, on_leave: Callable[[], None]) -> None:
        self.reason: FinishReason | None = None
        self.phases = Phases()
        self.num_cached = 0
        self._on_leave = on_leave
        self._tokens: deque[int] = deque()
        self._error: GenaiServerError | None = None
        self._changed = asyncio.Event()
        self._accepted = False

    # the engine's side

    def accept(self) -> None:
        """The engine has taken the request."""
        self._accepted = True
        self._changed.set()

    def deliver(self, tokens: list[int]) -> None:
        """More of the answer."""
        self._tokens.extend(tokens)
        self._changed.set()

    def finish(self, reason: FinishReason, phases: Phases, num_cached: int = 0) -> None:
        """The answer is complete."""
        if not self.is_ended:
            self.reason, self.phases, self.num_cached = reason, phases, num_cached
            self._changed.set()

    def fail(self, error: GenaiServerError) -> None:
        """The answer ends in an error, which the reader gets after the tokens that came before."""
        if not self.is_ended:
            self._error = error
            self._changed.set()

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will arrive."""
        return self.reason is not None or self._error is not None

    # the reader's side

    async def accepted(self) -> None:
        """Wait until the engine has taken the request. Raises the error with which it refused."""
        while not self._accepted:
            if self._error is not None:
                raise self._error
            await self._wait()

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> list[int]:
        while True:
            if self._tokens:
                tokens = list(self._tokens)
                self._tokens.clear()
                return tokens
            if self._error is not None:
                raise self._error
            if self.reason is not None:
                raise StopAsyncIteration
            await self._wait()

    def close(self) -> None:
        """The reader leaves."""
        on_leave, self._on_leave = self._on_leave, lambda: None
        on_leave()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
