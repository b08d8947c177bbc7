"""All running answers of one request, read together."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive

from genai_server.api.generation.answer import Piece, RunningAnswer, usage_of
from genai_server.api.generation.loop_share import LoopShare
from genai_server.api.generation.prompts import EchoedPrompt
from genai_server.api.generation.request_context import while_there
from genai_server.generation import Sampling
from genai_server.openai_api.usage import Usage
from genai_server.parts import WholeAnswer

T = TypeVar("T")


@dataclass(frozen=True)
class Generation:
    """All answers of one request. Must be closed, which ends those that still run."""

    # The request's id.
    id: str
    # The model's name in answers, with its adapter if it has one.
    model: str
    # Answers to the same prompt stand side by side.
    answers: Sequence[RunningAnswer]
    num_per_prompt: int
    # One for each prompt.
    prompts: Sequence[EchoedPrompt]
    # How tokens are chosen, every default resolved.
    sampling: Sampling

    async def pieces(self) -> AsyncIterator[tuple[int, RunningAnswer, Piece | None]]:
        """The pieces of all answers as they come, each with its answer's index; None when that answer has ended.

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
            running, share = len(readers), LoopShare()
            while running:
                await share.give_way()
                index, piece = await arrived.get()
                if isinstance(piece, Exception):
                    raise piece
                running -= piece is None
                yield index, self.answers[index], piece
        finally:
            for reader in readers:
                reader.cancel()

    async def whole(self, receive: Receive) -> list[WholeAnswer]:
        """Read all answers to their ends, and close.

        Raises ClientLeft as soon as `receive` reports a disconnect, and GenerationFailed.
        """
        return await self.read(receive, self._whole())

    async def read(self, receive: Receive, reading: Coroutine[Any, Any, T]) -> T:
        """Await `reading`, which reads the pieces, and close.

        Raises ClientLeft as soon as `receive` reports a disconnect, and GenerationFailed.
        """
        try:
            return await while_there(receive, reading)
        finally:
            self.close()

    @property
    def progress(self) -> tuple[int, int] | None:
        """Tokens of all prompts that have been read, and of how many; None once all have been."""
        unread = sum(answer.num_unread for answer in self.answers)
        total = sum(answer.usage.prompt for answer in self.answers)
        return (total - unread, total) if unread else None

    def usage(self) -> Usage:
        """Tokens of all answers together."""
        return usage_of(self.answers, self.num_per_prompt)

    def metrics(self) -> dict[str, Any]:
        """The first answer's figures, in the form of openai_api.schemas.base.Metrics, to six digits."""
        answer = self.answers[0]
        figures = msgspec.structs.asdict(answer.timings())
        rounded = {
            name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in figures.items()
        }
        profiled = {"profiled_tokens": answer.num_profiled} if answer.num_profiled else {}
        return {**rounded, "model": self.model, **profiled}

    def close(self) -> None:
        """Close all answers."""
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


async def _read(
    index: int, answer: RunningAnswer, arrived: "asyncio.Queue[tuple[int, Piece | None | Exception]]"
) -> None:
    try:
        async for piece in answer.pieces():
            arrived.put_nowait((index, piece))
        arrived.put_nowait((index, None))
    except Exception as error:  # pieces() of the Generation raises it again
        arrived.put_nowait((index, error))
