"""The answers to one request, of which there may be several, read together."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Receive

from genai_server.api.answer import Answer, Piece, usage_of
from genai_server.api.caller import while_there
from genai_server.openai_api.usage import Usage
from genai_server.parts import WholeAnswer

T = TypeVar("T")


@dataclass(frozen=True)
class Choices:
    """All answers of a request, those to the same prompt side by side; whoever has them must `close` them."""

    id: str
    model: str
    answers: Sequence[Answer]
    num_per_prompt: int

    async def pieces(self) -> AsyncIterator[tuple[int, Answer, Piece | None]]:
        """What comes of each answer, with its index, as it comes; None when that answer has ended.

        Raises GenerationFailed as soon as one of them fails.
        """
        if len(self.answers) == 1:
            async for only in self.answers[0].pieces():
                yield 0, self.answers[0], only
            yield 0, self.answers[0], None
            return
        arrived: asyncio.Queue[tuple[int, Piece | None | Exception]] = asyncio.Queue()
        readers = [asyncio.ensure_future(_read(index, answer, arrived)) for index, answer in enumerate(self.answers)]
        try:
            running = len(readers)
            while running:
                index, piece = await arrived.get()
                if isinstance(piece, Exception):
                    raise piece
                running -= piece is None
                yield index, self.answers[index], piece
        finally:
            for reader in readers:
                reader.cancel()

    async def whole(self, receive: Receive) -> list[WholeAnswer]:
        """Each answer in one piece, and then close.

        Raises ClientLeft as soon as `receive` says so, and GenerationFailed.
        """
        return await self.read(receive, self._whole())

    async def read(self, receive: Receive, pieces: Coroutine[Any, Any, T]) -> T:
        """What reading the pieces gives, and then close.

        Raises ClientLeft as soon as `receive` says so, and GenerationFailed.
        """
        try:
            return await while_there(receive, pieces)
        finally:
            self.close()

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many tokens of all prompts have been read, of how many; None when all have been."""
        unread = sum(answer.num_unread for answer in self.answers)
        total = sum(answer.usage.prompt for answer in self.answers)
        return (total - unread, total) if unread else None

    def usage(self) -> Usage:
        """Of all answers together."""
        return usage_of(self.answers, self.num_per_prompt)

    def close(self) -> None:
        """Leave."""
        for answer in self.answers:
            answer.close()

    async def _whole(self) -> list[WholeAnswer]:
        found = [WholeAnswer() for _ in self.answers]
        async for index, _, piece in self.pieces():
            if piece is not None:
                for part in piece.parts:
                    found[index].add(part)
                found[index].tokens.extend(piece.tokens)
        return found


async def _read(index: int, answer: Answer, arrived: "asyncio.Queue[tuple[int, Piece | None | Exception]]") -> None:
    try:
        async for piece in answer.pieces():
            arrived.put_nowait((index, piece))
        arrived.put_nowait((index, None))
    except Exception as error:  # it is raised again by whoever reads the queue
        arrived.put_nowait((index, error))
