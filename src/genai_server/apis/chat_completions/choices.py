"""The answers of a request as OpenAI's `choices`, in one object or in stream chunks."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

import msgspec
from fastapi import Response

from genai_server.answer_parts import Content, Part, ScoredToken, WholeAnswer
from genai_server.apis.chat_completions.schemas import ChatCompletionRequest
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.apis.shared.sampling_parameters import StreamFields
from genai_server.apis.shared.usage import Usage
from genai_server.generation.answers import Generation
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.generation.generate import generate
from genai_server.http.json_response import built_response
from genai_server.http.leniency import renaming
from genai_server.http.sse import EventStream
from genai_server.messages.generation_request import FinishReason

# Chunks with more scored tokens are built in a thread: an echoed prompt may be as long as the context.
_MANY_TOKENS = 100
_encode = msgspec.json.Encoder().encode


class ChoicesBuilder(ABC):
    """Builds the objects of one request: a complete object, or the chunks of a stream."""

    # The values of `object` in a complete object and in a chunk.
    complete_object: ClassVar[str]
    chunk_object: ClassVar[str]
    # The key of an answer's text in a chunk, in which no other object has this key.
    text_key: ClassVar[str]

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        *,
        fingerprint: str | None = None,
        has_usage: bool = False,
        has_logprobs: bool = False,
    ) -> None:
        self._common = {"id": id, "created": created, "model": model, "system_fingerprint": fingerprint}
        # Whether each chunk has a `usage`, which is null unless one is given.
        self._has_usage = has_usage
        self._has_logprobs = has_logprobs
        # The JSON of a chunk before and after its text, keyed by the answer's index.
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def complete(self, choices: Sequence[Any], usage: Usage) -> JsonObject:
        """The object with all answers, each as `choice` builds it."""
        return {**self._common, "object": self.complete_object, "choices": choices, "usage": usage.to_json()}

    @abstractmethod
    def choice(self, index: int, answer: WholeAnswer, reason: FinishReason) -> JsonObject:
        """One complete answer."""

    @abstractmethod
    def first(self, num_answers: int) -> list[JsonObject]:
        """The chunks before all others."""

    @abstractmethod
    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        """The chunk with the next parts of one answer, and the log probabilities of their tokens."""

    def text(self, index: int, text: str) -> bytes:
        """The chunk, as JSON, with more text of one answer and nothing else. All but the text is encoded once."""
        around = self._around.get(index)
        if around is None:
            # Quotation marks in strings are escaped, so this matches only the key itself, which occurs once.
            before, key, after = _encode(self.part(index, [Content("")], [])).partition(
                b'"%b":' % self.text_key.encode()
            )
            around = self._around[index] = before + key, after.removeprefix(b'""')
        return b"%b%b%b" % (around[0], _encode(text), around[1])

    @abstractmethod
    def last(self, index: int, reason: FinishReason, usage: Usage | None = None, *, calls_tools: bool) -> JsonObject:
        """The chunk with the finish reason of one answer."""

    def usage(self, usage: Usage) -> JsonObject:
        """The chunk with the usage, after all others."""
        return {**self._common, "object": self.chunk_object, "choices": [], "usage": usage.to_json()}

    def _chunk(self, choice: JsonObject, usage: Usage | None) -> JsonObject:
        chunk = {**self._common, "object": self.chunk_object, "choices": [choice]}
        return {**chunk, "usage": usage.to_json() if usage else None} if self._has_usage else chunk


async def choices_response(
    services: Services,
    body: ChatCompletionRequest | CompletionRequest,
    context: RequestContext,
    builder: type[ChoicesBuilder],
    *,
    id_prefix: str,
    is_long: bool,
) -> Response:
    """The response with all answers, in one object or as a stream. `is_long`: it may be large.

    Raises what `generate` does, naming the client's fields, and GenerationFailed.
    """
    with context.leniency.in_words(renaming(body.other_names)):
        generation = await generate(services, body, context, is_streamed=bool(body.stream))
    build = builder(
        f"{id_prefix}-{context.request_id.removeprefix('req-')}",
        generation.model,
        int(time.time()),
        fingerprint=generation.fingerprint,
        has_usage=body.has_last_usage or body.has_running_usage,
        has_logprobs=body.logprobs is not None and body.logprobs is not False,
    )
    if body.stream:
        return EventStream(generation, chunks(generation, build, body))
    answers = await context.run_while_connected(generation.whole())

    def whole() -> JsonObject:
        # Choices are encoded one by one: encoding holds the GIL, and other threads can run in between.
        choices = [
            msgspec.Raw(msgspec.json.encode(build.choice(index, whole, answer.reason)))
            for index, (whole, answer) in enumerate(zip(answers, generation.answers, strict=True))
        ]
        return _with_metrics(build.complete(choices, generation.usage()), generation, body)

    return await built_response(whole, is_long=is_long)


async def chunks(generation: Generation, build: ChoicesBuilder, body: StreamFields) -> AsyncGenerator[Any]:
    """The stream's chunks, followed by "[DONE]". Raises GenerationFailed."""
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
