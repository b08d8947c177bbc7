"""One running answer: its text, piece by piece, its finish reason and its timings."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive

from genai_server.engines.stream import TokenStream
from genai_server.errors import ServerStopping
from genai_server.generation import FinishReason
from genai_server.text.tokenizer import Decoder
from genai_server.timing import Stopwatch, Timings


class ClientLeft(Exception):
    """Nobody is there any more to take the answer."""


class Answer:
    """Reads a TokenStream as text; whoever has it must `close` it, which ends the generation if it still runs."""

    def __init__(
        self, stream: TokenStream, decoder: Decoder, stopwatch: Stopwatch, *, request_id: str, model: str
    ) -> None:
        self.request_id = request_id
        self.model = model
        self._stream = stream
        self._decoder = decoder
        self._stopwatch = stopwatch

    async def pieces(self) -> AsyncIterator[str]:
        """The text token by token, never empty: a part of a character comes with the token that completes it.

        Raises GenerationFailed, after what came before it.
        """
        async for batch in self._stream:
            self._stopwatch.count(len(batch.tokens))
            for token in batch.tokens:
                piece = self._decoder.decode([token])
                if piece:
                    yield piece

    @property
    def reason(self) -> FinishReason:
        """Why the answer has ended."""
        assert self._stream.reason is not None, "pieces() has not ended yet"
        return self._stream.reason

    @property
    def num_cached(self) -> int:
        """Tokens of the prompt that needed not be read, once the answer has ended."""
        return self._stream.num_cached

    def timings(self) -> Timings:
        """The figures, once the answer has ended."""
        return self._stopwatch.timings(self._stream.phases.decode)

    def close(self) -> None:
        """Leave; to be called in any case."""
        self._stream.close()

    async def text(self, receive: Receive) -> str:
        """The whole text, and then close. Raises ClientLeft as soon as `receive` says so, and GenerationFailed."""
        reading = asyncio.ensure_future(self._read())
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise ClientLeft
            return reading.result()
        except asyncio.CancelledError:
            raise ServerStopping from None  # nothing else cancels a plain answer
        finally:
            reading.cancel()
            leaving.cancel()
            self.close()

    async def _read(self) -> str:
        return "".join([piece async for piece in self.pieces()])


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
