"""The answers of one request as OpenAI's `choices`, in one object or in the chunks of a stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import msgspec
from fastapi import Response

from genai_server.answer_parts import Part, ScoredToken, WholeAnswer
from genai_server.api.generation.answers import Generation
from genai_server.api.generation.json_response import built_response
from genai_server.api.generation.request_context import RequestContext
from genai_server.api.generation.sse import EventStream
from genai_server.generation import FinishReason
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.schemas.sampling import StreamFields
from genai_server.openai_api.usage import Usage

# Scored tokens of which a chunk is made in a thread: an echoed prompt may have as many as the context.
_MANY_TOKENS = 100


class Builder(Protocol):
    """Builds the objects of one API."""

    def complete(self, choices: Sequence[Any], usage: Usage) -> JsonObject:
        """The object with all answers."""
        ...

    def choice(self, index: int, answer: WholeAnswer, reason: FinishReason) -> JsonObject:
        """One whole answer."""
        ...

    def first(self, num_answers: int) -> list[JsonObject]:
        """The chunks before all others."""
        ...

    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        """The chunk with more of one answer."""
        ...

    def text(self, index: int, text: str) -> bytes:
        """The chunk with more content of one answer and nothing else, as JSON."""
        ...

    def last(self, index: int, reason: FinishReason, usage: Usage | None = None, *, calls_tools: bool) -> JsonObject:
        """The chunk with the finish reason of one answer."""
        ...

    def usage(self, usage: Usage) -> JsonObject:
        """The chunk with the usage, after all others."""
        ...


async def choices_response(
    generation: Generation, build: Builder, body: StreamFields, context: RequestContext, *, is_long: bool
) -> Response:
    """The response with all answers; `is_long` says that it may be large. Raises ClientLeft and GenerationFailed."""
    if body.stream:
        return EventStream(generation, chunks(generation, build, body))
    answers = await context.waits_for(generation.whole())

    def whole() -> JsonObject:
        # Each choice is encoded by itself: encoding holds the GIL, which others get in between.
        choices = [
            msgspec.Raw(msgspec.json.encode(build.choice(index, whole, answer.reason)))
            for index, (whole, answer) in enumerate(zip(answers, generation.answers, strict=True))
        ]
        return _with_metrics(build.complete(choices, generation.usage()), generation, body)

    return await built_response(whole, is_long=is_long)


async def chunks(generation: Generation, build: Builder, body: StreamFields) -> AsyncGenerator[Any]:
    """The chunks of a stream with all answers, and the word that ends it. Raises GenerationFailed."""
    for chunk in build.first(len(generation.answers)):
        yield chunk
    has_running_usage = body.has_running_usage
    async for index, answer, piece in generation.pieces():
        usage = generation.usage() if has_running_usage else None
        if piece is not None and usage is None and (text := piece.plain_text) is not None:
            yield build.text(index, text)
        elif piece is None:
            yield build.last(index, answer.reason, usage, calls_tools=answer.calls_tools)
        elif piece.progress is not None:
            yield {**build.part(index, [], [], usage), "prompt_progress": piece.progress}
        elif len(piece.tokens) > _MANY_TOKENS:
            yield await asyncio.to_thread(build.part, index, piece.parts, piece.tokens, usage)
        else:
            yield build.part(index, piece.parts, piece.tokens, usage)
    if body.has_last_usage or body.include_metrics:
        yield _with_metrics(build.usage(generation.usage()), generation, body)
    yield "[DONE]"


def _with_metrics(built: JsonObject, generation: Generation, body: StreamFields) -> JsonObject:
    return {**built, "metrics": generation.metrics()} if body.include_metrics else built
