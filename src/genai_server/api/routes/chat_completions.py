"""OpenAI's /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from genai_server.api.generation.answers import Generation
from genai_server.api.generation.generate import generate
from genai_server.api.generation.json_response import built_response, written
from genai_server.api.generation.request_context import TheRequestContext
from genai_server.api.generation.sse import STREAMS, EventStream
from genai_server.api.middleware.body import BodyRoute
from genai_server.api.services import TheServices
from genai_server.openai_api.chat_completion import ChatCompletionBuilder
from genai_server.openai_api.schemas.base import ErrorResponse, JsonObject
from genai_server.openai_api.schemas.chat import ChatCompletionRequest

router = APIRouter(
    route_class=BodyRoute, tags=["openai"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)}
)


@router.post("/v1/chat/completions", responses=STREAMS)
@router.post("/chat/completions", include_in_schema=False)
async def create_chat_completion(
    body: ChatCompletionRequest,
    services: TheServices,
    context: TheRequestContext,
) -> Response:
    """OpenAI's chat completion, in one piece or as a stream of chunks."""
    generation = await generate(services, body, context, is_streamed=bool(body.stream))
    build = ChatCompletionBuilder(
        context.request_id,
        generation.model,
        int(time.time()),
        has_usage=body.has_last_usage or body.has_running_usage,
        has_logprobs=bool(body.logprobs),
    )
    if body.stream:
        return EventStream(generation, _chunks(generation, build, body))
    with closing(generation):
        answers = await context.waits_for(generation.whole())

    def completion() -> JsonObject:
        found = [
            written(build.choice(index, whole, answer.reason))
            for index, (whole, answer) in enumerate(zip(answers, generation.answers, strict=True))
        ]
        metrics = {"metrics": generation.metrics()} if body.include_metrics else {}
        return {**build.complete([], generation.usage()), "choices": found, **metrics}

    return await built_response(completion, is_long=bool(body.logprobs))


async def _chunks(
    generation: Generation, build: ChatCompletionBuilder, body: ChatCompletionRequest
) -> AsyncIterator[Any]:
    for index in range(len(generation.answers)):
        yield build.first(index)
    async for index, answer, piece in generation.pieces():
        usage = generation.usage() if body.has_running_usage else None
        if piece is not None and piece.progress is not None:
            yield {**build.part(index, [], [], usage), "prompt_progress": piece.progress}
        elif piece is not None:
            yield build.part(index, piece.parts, piece.tokens, usage)
        else:
            yield build.last(index, answer.reason, usage, calls_tools=answer.calls_tools)
    if body.has_last_usage or body.include_metrics:
        chunk = build.usage(generation.usage())
        yield {**chunk, "metrics": generation.metrics()} if body.include_metrics else chunk
    yield "[DONE]"
